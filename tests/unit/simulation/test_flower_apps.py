"""Apps as Flower's documentation teaches to write them: what Flower's own runtime gives, or an error by name.

docs/flower.md has all of them; here are those that once ended with another result, or not at all.
"""

from __future__ import annotations

import json
import re

import pytest
from support.flower_rows import APPS, ROWS, Outcome, Row, simulated, verdict

FLOWER = json.loads((APPS / "results.json").read_text(encoding="utf-8"))["flower"]


def row(title: str) -> Row:
    return next(row for row in ROWS if title in row.title)


@pytest.mark.parametrize(
    ("title", "mode"),
    [
        ("legacy: `client_fn`", "plain"),
        ("legacy: `client_fn`", "secure"),
        ("`pull_messages`", "plain"),
        ("U8 arrays", "plain"),
        ("two ArrayRecords", "plain"),
        ("vertical", "plain"),
        ("patients' rows", "plain"),
        ("counts, `@sum_only`", "secure"),
        ("`secaggplus_mod`", "plain"),
        ("own maximum", "plain"),
        ("template `weighted_average`", "secure"),
        ("`evaluate_metrics_aggr_fn`, a weighted mean", "secure"),
        ("FedAvg that halves", "plain"),
        ("FedAvg that halves", "secure"),
        ("FedAdagrad that does so", "secure"),
        ("`maximum` over a grid", "secure"),
    ],
)
def test_the_same_as_in_flower(title: str, mode: str) -> None:
    app = row(title)
    outcome = simulated(app, mode)
    assert verdict(app, mode, outcome, Outcome.from_json(FLOWER[app.key])) == "same"


@pytest.mark.parametrize(
    ("title", "reason"),
    [
        ("robust `aggregate_train`", r"its aggregate_train \(flower_apps/own_strategies.py:\d+\) would get one reply"),
        ("FedMedian with a `start`", "a median needs every single update"),
        ("own maximum", r"its train_metrics_aggr_fn \(flower_apps/epsilon.py:\d+\) would get one reply"),
        ("`pull_messages`", r"^flower_apps/loops.py:\d+: push_and_pull takes the replies itself"),
        ("`secaggplus_mod`", "Flower's SecAgg workflow cannot run inside secure aggregation"),
    ],
)
def test_refused_by_name_in_secure_mode(title: str, reason: str) -> None:
    outcome = simulated(row(title), "secure")
    assert outcome.refused
    assert re.search(reason, outcome.error), outcome.error


def test_own_loops_that_are_declared_end() -> None:
    """Also the one that waits until every message has its reply."""
    app = next(row for row in ROWS if row.server == "pushing_declared")
    assert verdict(app, "secure", simulated(app, "secure"), Outcome.from_json(FLOWER[app.key])) == "same"
