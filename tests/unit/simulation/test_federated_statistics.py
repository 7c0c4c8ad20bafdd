"""Statistics of a federation, in memory: the same in both modes as of all rows together."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.supercore.task_identity import TaskIdentity
from support.raising import raises

from fedcore.data.reports.statistics_report import bounds_from
from fedcore.data.statistics import Statistics, StatisticsQuery
from fedcore.errors import ConfigurationError, FedcoreError, RoundFailed
from fedcore.flower.app import FlowerApp
from fedcore.flower.apps.statistics import app_bounds
from fedcore.flower.serverside import run_question
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.wire.events import RunEvent

APP = Path(__file__).parents[2] / "apps" / "columns"
sys.path.insert(0, str(APP))
from columns_app.table import table  # noqa: E402

EXAMPLES = Path(__file__).parents[3] / "examples"
BOUNDS = {"age": (0.0, 100.0), "dose": (-1.0, 1.0)}


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 0)


class LeavesSecond:
    """The last client is away in the second exchange."""

    def __init__(self) -> None:
        self._exchange = 0

    def drops_at_step(self, cohort: Sequence[int]) -> dict[int, str]:
        self._exchange += 1
        return {cohort[-1]: "input"} if self._exchange == 2 else {}

    def drops(self, cohort: Sequence[int]) -> Collection[int]:
        return self.drops_at_step(cohort)


def ask(
    question: StatisticsQuery, mode: str = "secure", clients: int = 3, dropouts: Any = None, **run_config: Any
) -> tuple[Statistics, int]:
    """The statistics, and how many exchanges they took."""
    app = FlowerApp.load(APP)
    config = {**app.run_config, **run_config}
    settings = JobSettings.from_mapping({"aggregation": mode})
    events: list[RunEvent] = []
    simulation = Simulation(
        app=app, clients=clients, run_config=config, settings=settings, dropouts=dropouts, emit=events.append
    )
    with simulation.open() as backend:
        found = cast(
            Statistics, run_question(question, backend=backend, run="simulation", aggregation=settings.aggregation)
        )
    return found, sum(event.kind in ("exchange-done", "exchange-failed") for event in events)


@pytest.mark.parametrize("mode", ["secure", "plain"])
def test_are_those_of_all_rows_together(mode: str) -> None:
    found, exchanges = ask(StatisticsQuery.of(BOUNDS, bins=16), mode)
    assert (exchanges, found.clients, found.asked) == (1, 3, 3)
    for name, (low, high) in BOUNDS.items():
        everything = np.concatenate([table(partition, 40)[name] for partition in range(3)])
        present = everything[~np.isnan(everything)]
        inside = np.clip(present, low, high)
        column = found.columns[name]
        assert (column.count, column.missing) == (len(present), len(everything) - len(present))
        assert (column.below, column.above) == (np.sum(present < low), np.sum(present > high))
        assert list(column.cells) == np.histogram(inside, bins=16, range=(low, high))[0].tolist()
        assert found.mean[name] == pytest.approx(inside.mean(), abs=1e-6)
        assert found.std[name] == pytest.approx(inside.std(), abs=1e-6)


def test_nobody_has_to_name_the_columns() -> None:
    found, exchanges = ask(StatisticsQuery.of((-1.0, 4.0), bins=5), columns=40)
    assert exchanges == 3
    assert sorted(found.columns) == sorted(table(0, 40, 40))
    assert list(found.columns)[:2] == ["age", "dose"]
    wards = np.concatenate([table(partition, 40)["ward"] for partition in range(3)])
    assert list(found.columns["ward"].cells) == [0, *np.bincount(wards.astype(int), minlength=4)]


def test_many_long_names_take_several_exchanges() -> None:
    names = [f"more{place}" for place in range(57)]
    found, exchanges = ask(StatisticsQuery.of(dict.fromkeys(names, (0.0, 1.0)), bins=100), columns=60)
    assert exchanges > 1
    assert list(found.columns) == names
    assert all(column.count == 123 for column in found.columns.values())


@pytest.mark.parametrize("all_rows", [False, True])
def test_a_table_whose_queries_have_different_clients_ends(all_rows: bool) -> None:
    """Its numbers would not add up; statistics of columns are each by itself."""
    bounds = {f"more{number}": (0.0, 1.0) for number in range(57)}
    question = StatisticsQuery.of(bounds, bins=100, all_rows=all_rows)
    if not all_rows:
        assert ask(question, "plain", dropouts=LeavesSecond(), columns=60)[0].clients == 2
        return
    with raises(RoundFailed, check="other-clients"):
        ask(question, "plain", dropouts=LeavesSecond(), columns=60)


def test_a_column_that_nobody_has() -> None:
    with raises(FedcoreError, check="no-such-column", match="'height'"):
        ask(StatisticsQuery.of({"height": (0.0, 2.5)}))


def test_noise_for_every_record_leaves_a_federation_near_the_truth() -> None:
    question = StatisticsQuery.of(BOUNDS, bins=10, epsilon=2.0, delta=1e-6)
    found, _ = ask(question, clients=4, rows=5000)
    exact, _ = ask(StatisticsQuery.of(BOUNDS, bins=10), clients=4, rows=5000)
    assert found.epsilon == 2.0
    for name in BOUNDS:
        assert found.count[name] != exact.count[name]
        assert found.count[name] == pytest.approx(exact.count[name], rel=0.02)
        assert found.mean[name] == pytest.approx(exact.mean[name], abs=0.02 * (BOUNDS[name][1] - BOUNDS[name][0]))


@pytest.mark.parametrize(("name", "first", "count"), [("cox", "age", 39), ("air", "PM10", 11)])
def test_an_app_reads_the_bounds_that_the_command_reads(name: str, first: str, count: int) -> None:
    folder = EXAMPLES / name
    bounds = app_bounds(folder)
    assert (next(iter(bounds)), len(bounds)) == (first, count)
    assert bounds == bounds_from((), FlowerApp.load(folder).statistics)


def test_bounds_for_all_columns_alike_name_none(tmp_path: Path) -> None:
    text = (EXAMPLES / "cox" / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(text.partition("[tool.fedcore.statistics")[0])
    with raises(ConfigurationError, check="no-bounds"):
        app_bounds(tmp_path)
    with (tmp_path / "pyproject.toml").open("a") as file:
        file.write("[tool.fedcore.statistics]\nbounds = [0, 1]\n")
    with raises(ConfigurationError, check="bounds-form"):
        app_bounds(tmp_path)
