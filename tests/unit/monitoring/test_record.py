import io
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError
from rich.console import Console
from rich.text import Text
from support.events import event, told

from fedcore.api.history import history_of
from fedcore.monitoring.progress import ProgressView, ended_line, epsilon_line
from fedcore.monitoring.run_record import RunRecord, metric_like
from fedcore.wire.events import ExchangeDone, FiguresFound, Recorded, stamp

DONE = {
    "exchange": 1,
    "server_round": 1,
    "message_type": "train",
    "survivors": ["a", "b"],
    "examples": 10,
    "metrics": {"train_loss": 1.5},
    "clipped": 2,
    "lost_norm": 0.125,
    "seconds": 0.5,
    "stage_seconds": {"input": 0.4},
    "bytes_up": {"a": 100, "b": 300},
    "bytes_down": {"a": 10},
}


def evaluated(server_round: int, accuracy: float) -> dict[str, Any]:
    metrics = {"eval_acc": accuracy, "eval_loss": 0.1, "per_class": [1.0, 2.0]}
    return {**DONE, "message_type": "evaluate", "server_round": server_round, "metrics": metrics, "examples": 4}


def test_a_sum_that_others_may_know_counts_for_its_sites_whatever_became_of_it() -> None:
    record = RunRecord()
    attempt = {"exchange": 1, "server_round": 1}
    known = {"update_bytes": {"a": 80, "b": 80}}
    record.add(event("exchange-repeated", **attempt, large=1, survivors=2, **known), 1.0)
    record.add(event("exchange-failed", **attempt, reason="nobody is there", retry=True), 2.0)
    record.add(event("exchange-done", **{**DONE, "update_bytes": {"a": 40}}), 3.0)
    sites = {name: (gave.exchanges, gave.update_bytes) for name, gave in record.contributions().items()}
    assert sites == {"a": (2, 120), "b": (1, 80)}
    assert record.summary()["contributions"]["a"] == {"exchanges": 2, "update_bytes": 120}


@pytest.mark.parametrize(
    ("best_model", "first"), [("auc:max", "auc"), ("", "eval_acc"), ("absent:min", "eval_acc")], ids=str
)
def test_the_metric_that_chooses_the_best_model_comes_first(best_model: str, first: str) -> None:
    metrics = {"eval_acc": 0.85, "eval_loss": 0.4, "auc": 0.7}
    words = ended_line("run x", 3, metrics, best_model=best_model).split(", ")[-1].split()
    assert words[0] == first
    assert sorted(words[::2]) == sorted(metrics)


def test_a_run_that_asks_queries_alone_has_the_figures_of_its_server_app() -> None:
    record = RunRecord()
    for number in (1, 2, 2):
        query = {**DONE, "server_round": number, "message_type": "query.tree_sums", "metrics": {"sums": [1.0, 2.0]}}
        record.add(event("exchange-done", **query), 1.0)
    assert record.final_metrics() == {"sums": [1.0, 2.0]}
    for number, loss in ((1, 0.5), (2, 0.25)):
        record.add(FiguresFound(server_round=number, source="evaluate", metrics={"eval_loss": loss}), 2.0)
    assert record.final_metrics() == {"eval_loss": 0.25}
    assert record.evaluations() == {1: {"eval_loss": 0.5}, 2: {"eval_loss": 0.25}}
    assert (record.rounds(), history_of(record, {}).seconds.tolist()) == (2, [0.5, 1.0])
    record.add(event("exchange-done", **DONE), 3.0)
    assert (record.final_metrics(), record.evaluations()) == ({"train_loss": 1.5}, {})
    assert history_of(record, {}).seconds.tolist() == [0.5]


def test_a_record_adds_up() -> None:
    record = RunRecord()
    record.add(event("started", app="x", aggregation="secure", rounds=2), 0.0)
    record.add(event("exchange-done", **DONE), 1.0)
    record.add(event("exchange-done", **evaluated(1, 0.5)), 2.0)
    record.add(event("dropped", exchange=3, client="b", stage="input", reason="gone"), 2.5)
    record.add(event("exchange-done", **{**DONE, "server_round": 2, "bytes_up": {"a": 100}}), 3.0)
    record.add(event("exchange-done", **evaluated(2, 0.75)), 4.0)
    record.add(event("exchange-repeated", exchange=5, server_round=2, large=1, survivors=2), 3.5)
    record.add(event("log", line="hello"), 4.0)
    record.add(event("ended", status="finished", reason=""), 5.0)
    summary = record.summary()
    assert record.curve("eval_acc") == [(1, 2.0, 0.5), (2, 4.0, 0.75)]
    assert record.curve("per_class") == []
    assert tuple(metric_like(record.final_metrics(), word) for word in ("acc", "f1")) == ("eval_acc", None)
    assert summary["samples"] == 20
    # a: 100 + 100 + 100 + 100, b: 300 + 300 + 300
    assert (summary["bytes_up_per_client"], summary["bytes_down_per_client"]) == (650, 40)
    assert summary["rounds"] == 2
    assert (summary["clipped_elements"], summary["most_norm_lost"], summary["repeats"]) == (8, 0.125, 1)
    assert summary["dropouts"][0]["client"] == "b"
    assert (summary["status"], summary["aggregation"]) == ("finished", "secure")


def test_what_travelled_for_nothing_travelled_all_the_same() -> None:
    record = RunRecord()
    lost = {"server_round": 1, "bytes_up": {"a": 40}, "bytes_down": {"a": 7, "b": 9}}
    record.add(event("exchange-failed", exchange=1, reason="too few", retry=True, **lost), 1.0)
    record.add(event("exchange-repeated", exchange=2, large=1, survivors=2, **lost), 2.0)
    record.add(event("group-ended", exchange=4, reason="too few", **lost), 3.0)
    record.add(event("ended", status="failed", reason="too few"), 5.0)
    summary = record.summary()
    assert (summary["bytes_up_per_client"], summary["bytes_down_per_client"]) == (120, 24)


def test_questions_before_the_first_round_are_no_rounds() -> None:
    record = RunRecord()
    for exchange in (1, 2):
        asked = {**DONE, "message_type": "query.statistics", "exchange": exchange, "server_round": exchange}
        record.add(event("exchange-done", **asked), 1.0)
    assert record.rounds() == 2
    record.add(event("exchange-done", **{**DONE, "exchange": 3}), 2.0)
    assert record.rounds() == 1


def test_a_record_of_nothing_is_empty() -> None:
    summary = RunRecord().summary()
    assert summary["metrics"] == {}
    assert summary["bytes_up_per_client"] == 0


PRIVACY = {
    "mechanism": "skellam",
    "noise_multiplier": 1.25,
    "clip_norm": 0.5,
    "metric_bound": 0.0,
    "epsilon_budget": 8.0,
    "delta": 1e-5,
}


def test_a_private_run_says_what_it_spent_and_hides_its_examples() -> None:
    record = RunRecord()
    record.add(event("started", app="x", aggregation="secure", rounds=2, privacy=PRIVACY), 0.0)
    assert record.summary()["epsilon_spent"] == 0.0
    record.add(event("exchange-done", **{**DONE, "epsilon_spent": 2.5}), 1.0)
    record.add(event("exchange-done", **{**DONE, "epsilon_spent": 3.5}), 2.0)
    summary = record.summary()
    assert [exchange.epsilon_spent for exchange in record.exchanges] == [2.5, 3.5]
    assert (summary["epsilon_spent"], summary["privacy"], summary["samples"]) == (3.5, PRIVACY, 0)
    assert epsilon_line(record.privacy, summary["epsilon_spent"]) == (
        "each client has (3.500, 1e-05)-differential privacy (budget 8), the whole run together"
    )


def test_without_differential_privacy_there_is_no_epsilon() -> None:
    record = RunRecord()
    record.add(event("started", app="x", aggregation="secure", rounds=2, privacy=None), 0.0)
    record.add(event("exchange-done", **DONE), 1.0)
    assert (record.summary()["epsilon_spent"], record.summary()["privacy"]) == (None, None)


SHOWN = [
    ("started", {"aggregation": "secure", "privacy": PRIVACY}, "noise multiplier 1.25, clip norm 0.5, delta 1e-05"),
    ("started", {"aggregation": "secure", "privacy": PRIVACY}, "the run stops at epsilon 8"),
    ("started", {"aggregation": "secure", "privacy": PRIVACY}, "asked for no evaluation (set dp-metric-bound"),
    ("started", {"aggregation": "secure", "privacy": {**PRIVACY, "metric_bound": 2.0}}, "clipped to ±2 and noised"),
    ("started", {"aggregation": "secure", "privacy": {**PRIVACY, "epsilon_budget": None}}, "no budget"),
    ("exchange-done", {**DONE, "epsilon_spent": 2.5}, "train_loss 1.5000  epsilon 2.500"),
    ("clients", {"online": ["a"], "expected": 2}, "1 of 2 clients joined: a"),
    ("clients", {"online": ["a"], "expected": 2, "absent": ["b"]}, "1 of 2 clients joined: a; waiting for b"),
    (
        "clients",
        {"online": ["a", "b"], "expected": 2, "reporting": ["b"]},
        "2 of 2 clients joined: a, b; told of failures by b only",
    ),
    (
        "clients",
        {"online": ["a"], "expected": 2, "absent": ["b", "c"]},
        "1 of 2 clients joined: a; waiting for 1 of b, c",
    ),
    ("started", {"app": "x", "aggregation": "plain", "rounds": None}, "the server can read every update"),
    ("exchange-done", DONE, "run  round   1  train     2 clients"),
    ("exchange-done", DONE, "12.50% of the updates' norm did not fit into the scales and was cut off (clipped 2)"),
    (
        "exchange-repeated",
        {"exchange": 3, "server_round": 2, "large": 1, "survivors": 4},
        "exchange 3: the updates of 1 of 4 clients are larger than the scales; repeated with wider ones",
    ),
    ("dropped", {"exchange": 1, "client": "b", "stage": "input", "reason": "silent"}, "b dropped out during input"),
    ("exchange-failed", {"exchange": 1, "server_round": 3, "reason": "too few", "retry": True}, "trying again"),
    ("exchange-failed", {"exchange": 1, "server_round": 3, "reason": "too few", "retry": False}, "giving up"),
    ("ended", {"status": "failed", "reason": "too few"}, "failed: too few"),
    ("exchange", {"exchange": 1, "server_round": 1, "message_type": "train", "attempt": 2}, ""),
    ("stage", {"exchange": 1, "stage": "input", "done": 1, "expected": 2, "seconds": 0.1}, ""),
    ("exchange-done", {"survivors": ["client-1"]}, "  train     1 client   "),
    ("exchange-done", {"survivors": ["client-1", "client-2"]}, "  train     2 clients  "),
    ("log", {"line": "[bold] words of the app"}, "run  app: [bold] words of the app"),
    ("warning", {"line": "[bold] words"}, "run  [bold] words"),
]


@pytest.mark.parametrize(("kind", "data", "text"), SHOWN)
def test_each_event_has_its_line(kind: str, data: dict[str, Any], text: str) -> None:
    out = io.StringIO()
    with ProgressView(Console(file=out, width=200), "run") as view:
        view.show(event(kind, **data))
    assert text in out.getvalue()
    assert bool(text) == bool(out.getvalue())


def test_a_terminal_sees_the_stage() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True)
    with ProgressView(console, "run") as view:
        view.show(event("started", rounds=12))
        view.show(event("exchange", server_round=3, attempt=2))
        view.show(event("stage"))
        console.print(view.picture())
    shown = Text.from_ansi(out.getvalue()).plain
    assert "round 3 of 12  train (attempt 2): input 1/2" in shown


def test_who_watches_knows_how_many_rounds_there_are() -> None:
    out = io.StringIO()
    with ProgressView(Console(file=out, width=200), "run") as view:
        view.show(event("started", rounds=15))
        view.show(event("exchange-done", server_round=3))
    assert "round   3 of 15  train " in out.getvalue()


def test_an_event_with_a_key_too_many_is_refused() -> None:
    with pytest.raises(ValidationError, match="attempt"):
        event("exchange-done", attempt=2)


def test_what_is_recorded_comes_back_whole() -> None:
    kept = stamp(7, 1.23456, datetime(2026, 1, 2, tzinfo=UTC), event("exchange-done", metrics={"loss": math.nan}))
    again = Recorded.model_validate_json(kept.model_dump_json())
    assert isinstance(again.event, ExchangeDone)
    assert (again.seq, again.seconds, again.time) == (7, 1.235, kept.time)
    assert math.isnan(again.event.metrics["loss"])  # type: ignore[arg-type]


def test_all_bytes_of_a_run_stand_next_to_those_of_its_exchanges() -> None:
    record = RunRecord()
    record.add(event("exchange-done", bytes_up={"a": 1, "b": 3}, bytes_down={"a": 2, "b": 2}), 1.0)
    assert record.summary()["all_bytes"] is None
    record.add(traffic := event("traffic"), 2.0)
    assert record.summary()["all_bytes"] == told(traffic)
    assert record.summary()["bytes_up_per_client"] == 2
