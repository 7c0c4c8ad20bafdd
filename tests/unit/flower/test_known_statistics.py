"""Statistics that are known when a ServerApp begins: nobody is asked, and nothing else than was meant happens."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.raising import raises

from fedcore import TrainingColumns
from fedcore.errors import ConfigurationError
from fedcore.flower.app import FlowerApp
from fedcore.flower.grid.known_statistics import known_statistics, statistics_of
from fedcore.flower.serverside import run_server_app
from fedcore.run.exchange import ExchangeReply
from fedcore.run.plain import PlainReply

SCALE = {"statistics-columns": ["age", "dose"], "statistics-mean": [50.0, 1.0], "statistics-std": [10.0, 0.5]}


STEADY = FlowerApp.load(Path(__file__).parents[2] / "apps" / "steady")


class NoGrid:
    """Nobody is asked."""


class Silent:
    """An ExchangeBackend whose clients must not be asked anything."""

    def nodes(self) -> list[int]:
        return [1, 2, 3]

    def waits(self, nodes: int, setting: str, present: int) -> None:
        raise AssertionError("they are all there")

    def exchange(self, request: object) -> list[ExchangeReply]:
        raise AssertionError("a message left")

    def ask(self, request: object) -> list[PlainReply]:
        raise AssertionError("a message left")

    def report_figures(self, figures: object) -> None:
        del figures


def columns(*names: str) -> TrainingColumns:
    return TrainingColumns(names=names, bounds=lambda config: dict.fromkeys(names, (0.0, 100.0)))


def ask(wanted: TrainingColumns) -> dict[str, object]:
    return wanted.ask(NoGrid(), {})  # type: ignore[arg-type]


def test_nobody_is_asked_for_what_an_earlier_run_had() -> None:
    with statistics_of({**SCALE, "lr": 0.5}, source="run-1"):
        assert ask(columns("dose", "age")) == SCALE
        known = known_statistics()
        assert known is not None
        known.check_use()
    assert known_statistics() is None


def test_a_run_of_another_table_is_refused_by_the_columns_name() -> None:
    with statistics_of(SCALE, source="run-1"), raises(ConfigurationError, check="no-statistics", match="weight"):
        ask(columns("age", "weight"))


def test_an_app_that_takes_none_sends_nothing() -> None:
    with statistics_of(SCALE, source="run-1"), raises(ConfigurationError, check="statistics-not-in-use"):
        run_server_app(STEADY, backend=Silent(), run="r", run_config=dict(STEADY.run_config), aggregation="secure")


def test_who_derives_a_first_model_takes_what_the_messages_say() -> None:
    with statistics_of({}):
        assert ask(columns("age")) == {}
        known = known_statistics()
        assert known is not None
        known.check_use()


@pytest.mark.parametrize("wanted", [TrainingColumns(), None], ids=["an app without columns", "one that asks itself"])
def test_statistics_that_the_app_does_not_take_are_refused(wanted: TrainingColumns | None) -> None:
    with statistics_of(SCALE, source="run-1"):
        if wanted is not None:
            assert ask(wanted) == {}
        known = known_statistics()
        assert known is not None
        with raises(ConfigurationError, check="statistics-not-in-use"):
            known.check_use()
