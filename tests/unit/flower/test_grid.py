"""Ids of messages and replies, as Flower's own Grids set them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg, strategy_utils
from flwr.supercore.task_identity import TaskIdentity
from support.raising import raises

from fedcore.errors import ConfigurationError
from fedcore.flower import mean_only
from fedcore.flower.grid.grid import ExchangeGrid
from fedcore.flower.grid.sampling import Polling
from fedcore.flower.grid.secure_grid import SecureGrid
from fedcore.run.exchange import ExchangeReply, ExchangeRequest
from fedcore.state import ModelState

NODES = (1, 2, 3)


@dataclass
class Mean:
    """An ExchangeBackend whose cohort answers with zeros."""

    def nodes(self) -> list[int]:
        return list(NODES)

    def report_figures(self, figures: object) -> None:
        del figures

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        state = ModelState.from_arrays({"w": np.zeros(2, np.float32)})
        return [ExchangeReply(node=0, state=state, examples=3, metrics={})]


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 0)


def messages() -> list[Message]:
    content = RecordDict({"arrays": ArrayRecord({"w": Array(np.ones(2, np.float32))})})
    return [Message(content, node, "train") for node in NODES]


def secure() -> ExchangeGrid:
    return SecureGrid(Mean(), run_id=1)


@mean_only
def test_the_id_of_pushed_messages_is_the_one_that_the_reply_names() -> None:
    """One reply stands for all nodes, so a loop that waits for a reply to every id ends."""
    grid, pushed = secure(), messages()
    ids = list(grid.push_messages(pushed))
    assert ids == [pushed[0].metadata.message_id]
    replies = list(grid.pull_messages(ids))
    assert [reply.metadata.reply_to_message_id for reply in replies] == ids
    assert list(grid.pull_messages(ids)) == []


@mean_only
def test_replies_name_the_messages_that_were_sent() -> None:
    sent = messages()
    (reply,) = secure().send_and_receive(sent)
    assert reply.metadata.reply_to_message_id == sent[0].metadata.message_id != ""


@mean_only
def test_a_message_that_is_sent_again_gets_a_new_id() -> None:
    grid, sent = secure(), messages()
    first = list(grid.push_messages(sent))
    assert not set(first) & set(grid.push_messages(sent))


@dataclass
class Growing(Mean):
    """Of five members two are there, and one more after a time."""

    now: float = 0.0
    third_at: float = 1e9
    told: list[tuple[float, int, str, int]] = field(default_factory=list)

    def nodes(self) -> list[int]:
        return [1, 2, 3] if self.now >= self.third_at else [1, 2]

    def waits(self, nodes: int, setting: str, present: int) -> None:
        self.told.append((self.now, nodes, setting, present))

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def grid(self) -> ExchangeGrid:
        return SecureGrid(self, run_id=1, most_nodes=lambda: 5, polling=Polling(clock=lambda: self.now))


def test_a_strategy_that_waits_is_told_of_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Growing(third_at=25.0)
    monkeypatch.setattr(strategy_utils, "sleep", backend.sleep)
    assert strategy_utils.sample_nodes(backend.grid(), 3, 2)[1] == [1, 2, 3]
    assert backend.told == [(10.0, 3, "", 2), (20.0, 3, "", 2)]
    with raises(ConfigurationError, check="too-few-nodes", match=r"\b6\b.*\b5\b"):
        strategy_utils.sample_nodes(backend.grid(), 6, 2)


@dataclass
class Leaving(Mean):
    """One node leaves after it was counted."""

    asked: int = 0

    def nodes(self) -> list[int]:
        self.asked += 1
        return [1, 2, 3] if self.asked == 1 else [1, 2]


def test_a_node_that_leaves_between_count_and_sample_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(seconds: float) -> None:
        raise AssertionError("it waits")

    monkeypatch.setattr(strategy_utils, "sleep", waits)
    grid = SecureGrid(Leaving(), run_id=1)
    model = ArrayRecord({"w": Array(np.ones(2, np.float32))})
    for nodes in ({1, 2, 3}, {1, 2}):
        asked = FedAvg(min_available_nodes=1).configure_train(1, model, ConfigRecord(), grid)
        assert {message.metadata.dst_node_id for message in asked} == nodes


def test_so_is_a_loop_of_the_apps_own() -> None:
    backend = Growing()
    grid = backend.grid()
    while len(list(grid.get_node_ids())) < 6 and backend.now < 25:
        backend.sleep(0.5)
    assert [(now, nodes) for now, nodes, _, _ in backend.told] == [(10.0, 0), (20.0, 0)]


@mean_only
def test_an_app_that_works_between_two_questions_does_not_wait() -> None:
    backend = Growing()
    grid = backend.grid()
    for _ in range(5):
        list(grid.get_node_ids())
        backend.sleep(9.0)
        grid.send_and_receive(messages())
    for _ in range(3):
        list(grid.get_node_ids())
        backend.sleep(100.0)
    assert backend.told == []
