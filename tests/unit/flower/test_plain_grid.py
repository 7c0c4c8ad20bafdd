"""The Grid of plain mode names the model in its messages as secure mode would, so that runs can be compared."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedcore.flower.grid.plain_grid import PlainGrid
from fedcore.flower.grid.plain_request import PlainRequest
from fedcore.run.exchange import ExchangeReply, ExchangeRequest
from fedcore.run.plain import PlainReply
from fedcore.state import ModelState

WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(autouse=True)
def _process_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's messages take their run from the process."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@dataclass
class Asked:
    """A backend that answers nothing, and keeps what it is asked."""

    requests: list[PlainRequest] = field(default_factory=list)

    def nodes(self) -> list[int]:
        return [1, 2]

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        raise AssertionError(request)

    def report_figures(self, figures: object) -> None:
        del figures

    def ask(self, request: PlainRequest) -> list[PlainReply]:
        self.requests.append(request)
        return []


def sent(*contents: RecordDict) -> list[str | None]:
    """The models that the requests name for one message to each of as many nodes as there are contents."""
    backend = Asked()
    grid = PlainGrid(backend, run_id=1)
    grid.send_and_receive([Message(one, node, "train") for node, one in enumerate(contents, start=1)])
    return [request.model for request in backend.requests]


def model(array: np.ndarray, server_round: int = 1) -> RecordDict:
    return RecordDict(
        {"arrays": ArrayRecord({"w": Array(array)}), "config": ConfigRecord({"server-round": server_round})}
    )


def test_a_model_is_named_as_its_safetensors_file_would_be() -> None:
    assert sent(model(WEIGHT), model(WEIGHT)) == [ModelState.from_arrays({"w": WEIGHT}).sha256()]


def test_the_name_is_that_of_the_dtypes_that_the_run_began_with() -> None:
    backend = Asked()
    grid = PlainGrid(backend, run_id=1)
    for array in (WEIGHT, WEIGHT.astype(np.float64)):  # FedAdam answers in float64
        grid.send_and_receive([Message(model(array), 1, "train")])
    first, second = backend.requests
    assert first.model == second.model


@pytest.mark.parametrize(
    "contents",
    [
        (model(WEIGHT), model(WEIGHT, server_round=2)),
        (RecordDict({"config": ConfigRecord({"a": 1})}),),
        (RecordDict({"one": ArrayRecord({"w": Array(WEIGHT)}), "two": ArrayRecord({"w": Array(WEIGHT)})}),),
        (RecordDict({"trees": ArrayRecord({"t": Array("bytes", (3,), "raw", b"abc")})}),),
    ],
    ids=["different messages", "no arrays", "two records", "bytes"],
)
def test_what_is_no_single_model_has_no_name(contents: tuple[RecordDict, ...]) -> None:
    assert sent(*contents) == [None]
