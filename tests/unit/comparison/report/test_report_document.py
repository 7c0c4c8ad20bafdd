"""report.json: what goes in comes out, and the shipped schema says what it looks like."""

import inspect
import json
import math
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.comparisons import everything, made_up, made_up_run
from support.later import Later
from support.raising import raises

from fedcore.comparison.modes import MODES
from fedcore.comparison.report import Comparison, merge
from fedcore.comparison.report.files import Report, json_schema, read_reports
from fedcore.comparison.results import RunResult, Staleness, stored_precision
from fedcore.errors import ConfigurationError

jsonschema = Later("jsonschema")

ROOT = Path(__file__).parents[4]
SHIPPED = (files("fedcore.comparison.report") / "schema.json").read_text()
SCHEMA = json.loads(SHIPPED)


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def document_of(comparison: Comparison) -> dict[str, Any]:
    return json.loads(Report.of(comparison).to_json(), parse_constant=no_constant)


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
    jsonschema.validate(document_of(comparison), SCHEMA)
    assert Report.read(Report.of(comparison).to_json()) == comparison


def test_a_run_that_diverged_stays_so() -> None:
    run = made_up_run("local", seconds=math.nan)
    (back,) = Report.read(Report.of(made_up("local", runs=(run,))).to_json()).runs
    assert math.isnan(back.seconds)


def test_the_shipped_schema_is_that_of_the_code() -> None:
    assert json_schema() == SHIPPED, "the command to make it anew is at the top of fedcore/comparison/report/files.py"


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
    document = document_of(made_up())
    jsonschema.validate(document, SCHEMA)
    spoil(document)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)


def test_a_report_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    for spoil, word in (({"schema": "fedcore/compare/1"}, "schema: "), ({"more": 1}, "more: ")):
        path.write_text(json.dumps({**document_of(made_up()), **spoil}))
        with raises(ConfigurationError, check="no-report", match=word):
            read_reports([path])
    path.write_text("[")
    with raises(ConfigurationError, check="no-report"):
        read_reports([path])


def test_the_precision_is_that_of_the_stored_weights(tmp_path: Path) -> None:
    assert stored_precision(tmp_path) == ""
    for site, kind in (("client-1", np.float32), ("client-2", np.float16)):
        (tmp_path / site).mkdir()
        state = {"weight": np.zeros(2, kind), "batches": np.zeros(1, np.int64)}
        save_file(state, tmp_path / site / "model.safetensors")
    save_file({"weight": np.zeros(2)}, tmp_path / "initial.safetensors")
    assert stored_precision(tmp_path) == "float16, float32"


def test_the_page_on_comparisons_names_every_mode() -> None:
    text = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    assert set(MODES) <= set(re.findall(r"`([a-z_0-9-]+)`", text))


def explained(kind: type) -> set[str]:
    """The names that a docstring explains, one or several a line."""
    lines = re.findall(r"^([a-z0-9_, ]+): ", inspect.getdoc(kind) or "", re.MULTILINE)
    return set(re.findall(r"\w+", " ".join(lines)))


def test_every_key_of_a_report_is_explained() -> None:
    """The page is made from the docstrings, but for the keys that are computed."""
    page = (ROOT / "docs" / "reference" / "report.md").read_text(encoding="utf-8")
    assert set(SCHEMA["properties"]) <= explained(Comparison) | set(re.findall(r"`([a-z_]+)`", page))
    assert set(SCHEMA["$defs"]["RunResult"]["properties"]) <= explained(RunResult)
