"""report.json: what goes in comes out, and the shipped schema says what it looks like."""

import json
import math
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
from support.comparisons import everything, made_up, made_up_run

from fedcore.compare.report import Comparison, merge
from fedcore.compare.report.schema import json_schema
from fedcore.compare.report.write import report
from fedcore.compare.results import Staleness

SCHEMA = json.loads((files("fedcore.compare.report") / "schema.json").read_text())


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


def diverged() -> Comparison:
    """Numbers that JSON does not have, wherever they can be."""
    run = made_up_run("ps-ssp", rounds=1, point={"s": math.inf})
    run = made_up_run(
        "ps-ssp",
        point={"s": math.inf},
        staleness=Staleness(clocks={0: 3}, updates={1: 3}, bound=math.inf),
        simulated_seconds=None,
        curve=run.curve,
    )
    return made_up("ps-ssp", runs=(run,), network=None, cost=None, split=())


@pytest.mark.parametrize("made", [everything, diverged, lambda: merge({"a": made_up(), "b": made_up(sites=5)})])
def test_a_report_holds_the_whole_comparison(made: Any) -> None:
    comparison = made()
    document = through_json(report(comparison))
    jsonschema.validate(document, SCHEMA)
    assert Comparison.from_json(document) == comparison


def test_a_run_that_diverged_stays_so() -> None:
    run = made_up_run("local", sites=1)
    worse = made_up_run("local", curve=(run.curve[0], *(made_up_run("local", rounds=0).curve)), seconds=-math.inf)
    (back,) = Comparison.from_json(through_json(report(made_up("local", runs=(worse,))))).runs
    assert back.seconds == -math.inf


def test_the_shipped_schema_is_that_of_the_code() -> None:
    assert json_schema() == SCHEMA, "python -m fedcore.compare.report.schema > fedcore/compare/report/schema.json"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda document: document.pop("fairness"),
        lambda document: document.update(more=1),
        lambda document: document["runs"][0].update(status="perhaps"),
        lambda document: document["runs"][0]["curve"][0].update(seconds="soon"),
        lambda document: document["summary"][0]["seconds"].pop("n"),
    ],
)
def test_the_schema_refuses_what_is_no_report(spoil: Any) -> None:
    document = through_json(report(made_up()))
    jsonschema.validate(document, SCHEMA)
    spoil(document)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)


def test_a_report_of_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="fedcore/compare/1"):
        Comparison.from_json({**report(made_up()), "schema": "fedcore/compare/1"})
