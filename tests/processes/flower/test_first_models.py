"""First models: two processes derive the same one for every example and template, without its data.

For examples, templates and rows the processes are forked, which spares the imports of torch and Flower; generators that
nobody seeds, and what is not derived, are tested with programs that start by themselves.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.commands import forked
from support.flower_rows import APPS, ROWS, Outcome, Row
from support.forked import start_process

from fedcore.cli.new.choices import TEMPLATES
from fedcore.flower.app import AppBundle, FlowerApp
from fedcore.flower.first_model import derive as deriving
from fedcore.flower.first_model.derive import derive
from fedcore.flower.first_model.messages import Derivation, FirstModel, FirstModelStart, NotDerived
from fedcore.flower.first_model.repeat import why_not_derived
from fedcore.state import sha256_file

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/pyproject.toml"))
UNSEEDED = ROOT / "tests" / "apps" / "unseeded"
KEPT = json.loads((APPS / "results.json").read_text(encoding="utf-8"))["processes"]["secure"]


def repeated(folder: Path, **run_config: Any) -> str:
    """Why the app's first model cannot be derived twice alike; "" if it can."""
    app = FlowerApp.load(folder)
    return why_not_derived(app, 4, {**app.run_config, **run_config}, app.settings)


@pytest.fixture(autouse=True)
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDCORE_DATA", raising=False)


@pytest.fixture
def forked_derivations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deriving, "start_process", start_process)


@pytest.mark.usefixtures("forked_derivations")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_derived(example: Path) -> None:
    if example.name == "lightning":
        pytest.importorskip("lightning", reason="needs lightning")
    assert repeated(example) == ""


@pytest.mark.usefixtures("forked_derivations")
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_is_derived(template: str, tmp_path: Path) -> None:
    forked("new", tmp_path / "app", "--template", template)
    assert repeated(tmp_path / "app") == ""


@pytest.mark.usefixtures("forked_derivations")
@pytest.mark.parametrize("row", [row for row in ROWS if row.checked], ids=lambda row: row.key)
def test_a_row_of_the_table_that_runs_in_secure_mode_is_derived(row: Row) -> None:
    if Outcome.from_json(KEPT[row.key]).error:
        pytest.skip("secure mode refuses it")
    reason = repeated(APPS, **row.config)
    assert reason == "" or "asks the clients: query" in reason, "one that only asks has no model"


def start_in(folder: Path, run: str = "one", app_sha256: str = "", **run_config: Any) -> FirstModelStart:
    """Of the unseeded app, whose copy is made in the folder."""
    app, bundle = FlowerApp.load(UNSEEDED), AppBundle.from_folder(UNSEEDED)
    return FirstModelStart(
        app=str(bundle.install(folder)),
        app_sha256=app_sha256 or bundle.sha256,
        run=run,
        run_config={**app.run_config, **run_config},
        aggregation="secure",
        members=4,
        nodes=[1, 2, 3, 4],
    )


def derived(start: FirstModelStart, **options: Any) -> Derivation:
    return asyncio.run(derive(start, **options))


def test_unseeded_generators_are_seeded_by_the_run(tmp_path: Path) -> None:
    """At import and later, torch's, NumPy's and Python's, and the order of a set; a test at the server is left out."""
    kept = tmp_path / "kept" / "model"
    kept.parent.mkdir()
    starts = [start_in(tmp_path / "apps", run) for run in ("one", "one", "two")]
    first, again, other = map(derived, [starts[0].model_copy(update={"file": str(kept)}), *starts[1:]])
    assert isinstance(first, FirstModel)
    assert sha256_file(kept) == first.sha256
    assert first == again != other


def test_a_model_that_nobody_can_make_again_is_found() -> None:
    assert "first-models" in repeated(UNSEEDED, unrepeatable=True)


@pytest.mark.parametrize(
    ("changes", "options", "reason"),
    [
        ({"needs-data": True}, {}, "FEDCORE_DATA"),
        ({"app_sha256": "ab" * 32}, {}, "changed"),
        ({}, {"seconds": 0.01}, "0.01"),
    ],
    ids=["the server's data", "another app", "too long"],
)
def test_what_is_not_derived_says_why(
    tmp_path: Path, changes: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    made = derived(start_in(tmp_path, **changes), **options)
    assert isinstance(made, NotDerived)
    assert reason in made.reason
