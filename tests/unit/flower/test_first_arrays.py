"""The first model of a strategy takes no room twice: it rests on the file that is sent, and ends with its use."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedProx, Strategy
from flwr.supercore.task_identity import TaskIdentity

from fedcore.flower.array_view import ArrayView
from fedcore.flower.grid.secure_grid import SecureGrid
from fedcore.flower.records import arrays_from_state
from fedcore.run.exchange import ExchangeReply, ExchangeRequest
from fedcore.state import ModelState

FIRST = np.arange(6, dtype=np.float32).reshape(2, 3)


@dataclass
class Cohort:
    """An ExchangeBackend that adds 1 to every weight, or does not reply."""

    on_exchange: Callable[[], None]
    silent: int = 0
    sent: list[ModelState] = field(default_factory=list)

    def nodes(self) -> list[int]:
        return [1, 2, 3]

    def report_figures(self, figures: object) -> None:
        del figures

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        assert request.model is not None
        self.sent.append(request.model)
        self.on_exchange()
        if len(self.sent) <= self.silent:
            return []
        state = ModelState.from_arrays({name: array + np.float32(1) for name, array in request.model.items()})
        return [ExchangeReply(node=0, state=state, examples=30, metrics={})]


@pytest.fixture
def grid_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., SecureGrid]:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 0)

    def write_first(model: ModelState, nodes: int) -> ModelState:
        assert nodes == 3
        model.save(tmp_path / "first")
        return ModelState.open(tmp_path / "first")

    return lambda cohort: SecureGrid(cohort, run_id=1, write_first=write_first)


def start(grid: SecureGrid, strategy: Strategy, first: ArrayRecord, rounds: int = 2) -> Any:
    return strategy.start(grid, first, num_rounds=rounds)


def averaging(kind: type[FedAvg], **options: Any) -> FedAvg:
    return kind(fraction_evaluate=0.0, **options)


def test_the_first_model_lies_in_the_file_that_is_sent_alone(grid_of: Callable[..., SecureGrid]) -> None:
    values = FIRST.copy()
    freed = weakref.ref(values)
    first = arrays_from_state(ModelState.from_arrays({"w": values}))
    del values
    gone: list[bool] = []
    cohort = Cohort(lambda: (gc.collect(), gone.append(freed() is None)))  # type: ignore[arg-type,return-value]
    start(grid_of(cohort), averaging(FedAvg), first, rounds=1)
    assert gone == [True]
    assert cohort.sent[0].path is not None
    np.testing.assert_array_equal(first["w"].numpy(), FIRST)


def test_an_array_that_holds_bytes_stays_what_it_is(grid_of: Callable[..., SecureGrid]) -> None:
    first = ArrayRecord({"w": Array(FIRST)})
    start(grid_of(Cohort(lambda: None)), averaging(FedAvg), first, rounds=1)
    np.testing.assert_array_equal(first["w"].numpy(), FIRST)


def test_values_of_another_kind_take_no_place() -> None:
    view = ArrayView(FIRST)
    view.rest_on(FIRST.astype(np.float64) + 1)
    np.testing.assert_array_equal(view.numpy(), FIRST)


@pytest.mark.parametrize(
    "strategy",
    [
        averaging(FedAvg),
        averaging(FedProx, proximal_mu=0.1),
        averaging(FedAvgM, server_momentum=0.5),
        averaging(FedAdam),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_it_is_gone_once_another_is_sent_and_nothing_else_changes(
    grid_of: Callable[..., SecureGrid], strategy: FedAvg
) -> None:
    plain = start(grid_of(Cohort(lambda: None)), averaging(type(strategy), **options(strategy)), record(), rounds=4)
    first, there = record(), []
    grid = grid_of(Cohort(lambda: there.append(len(first))))
    grid.first_arrays = first
    result = start(grid, strategy, first, rounds=4)
    assert there == [1, 0, 0, 0]
    np.testing.assert_array_equal(result.arrays["w"].numpy(), plain.arrays["w"].numpy())


def test_it_stays_while_its_round_is_repeated(grid_of: Callable[..., SecureGrid]) -> None:
    first, there = record(), []
    cohort = Cohort(lambda: there.append(len(first)), silent=2)
    grid = grid_of(cohort)
    grid.first_arrays = first
    start(grid, averaging(FedAvg), first, rounds=4)
    assert there == [1, 1, 1, 0]
    np.testing.assert_array_equal(cohort.sent[3]["w"], FIRST + 1)


def record() -> ArrayRecord:
    return arrays_from_state(ModelState.from_arrays({"w": FIRST}))


def options(strategy: FedAvg) -> dict[str, Any]:
    if isinstance(strategy, FedProx):
        return {"proximal_mu": strategy.proximal_mu}
    return {"server_momentum": strategy.server_momentum} if isinstance(strategy, FedAvgM) else {}
