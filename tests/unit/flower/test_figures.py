"""What a strategy makes of replies is told once, round by round, and its means are not told again."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.app import Error, Message, MetricRecord, RecordDict
from flwr.server import History
from flwr.serverapp.strategy import Result
from flwr.supercore.task_identity import TaskIdentity

from fedcore.flower.figures import NewFigures

SUMS = {"num-examples": 4, "loss": 0.5, "auc/sums": [1.0, 2.0]}


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's messages want to know who makes them."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def question(message_type: str) -> Message:
    asked = Message(RecordDict(), 1, message_type)
    asked.metadata.__dict__["_message_id"] = "1"
    return asked


def reply(metrics: dict[str, Any], message_type: str = "evaluate") -> Message:
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=question(message_type))


def told(figures: NewFigures, found: Result | History | None) -> list[tuple[str, int, dict[str, Any]]]:
    return [(one.source, one.server_round, dict(one.metrics)) for one in figures.of(found)]


def test_what_is_beyond_the_mean_is_told_once() -> None:
    figures, found = NewFigures(), Result()
    assert told(figures, None) == told(figures, found) == []
    figures.note([reply(SUMS)])
    found.evaluate_metrics_clientapp[1] = MetricRecord({"loss": 0.5, "auc": 0.75})
    assert told(figures, found) == [("evaluate", 1, {"auc": 0.75})]
    assert told(figures, found) == []
    figures.note([reply({**SUMS, "loss": 0.25})])
    found.evaluate_metrics_clientapp[2] = MetricRecord({"loss": 0.25})
    assert told(figures, found) == []


def test_another_value_under_the_same_name_is_told() -> None:
    figures, found = NewFigures(), Result()
    figures.note([reply({"num-examples": 4, "ratio": 0.5})])
    found.evaluate_metrics_clientapp[1] = MetricRecord({"ratio": 0.75})
    assert told(figures, found) == [("evaluate", 1, {"ratio": 0.75})]


@pytest.mark.parametrize("failed", [False, True])
def test_means_of_single_replies_are_known_from_the_exchange(failed: bool) -> None:
    figures, found = NewFigures(), Result()
    broken = [Message(Error(0, "it broke"), reply_to=question("train"))] if failed else []
    figures.note([reply({"loss": 0.5}, "train"), reply({"loss": 1.5}, "train"), *broken])
    found.train_metrics_clientapp[1] = MetricRecord({"loss": 1.0, "spread": 1.0})
    assert told(figures, found) == [("train", 1, {"spread": 1.0})]


def test_what_the_server_found_by_itself_is_all_told() -> None:
    figures, found = NewFigures(), Result()
    found.evaluate_metrics_serverapp[0] = MetricRecord({"loss": 2.0})
    assert told(figures, found) == [("server", 0, {"loss": 2.0})]


def test_a_history_may_hold_anything() -> None:
    figures, found = NewFigures(), History()
    found.add_metrics_centralized(1, {"acc": 0.5, "note": b"x", "names": ["a"], "many": [0.0] * 5000, "ok": True})
    assert told(figures, found) == [("server", 1, {"acc": 0.5})]
