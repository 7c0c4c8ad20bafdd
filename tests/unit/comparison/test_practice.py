"""What a first step imports belongs to the start of a worker, not to its training."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedcore.comparison.modes import parse_modes
from fedcore.comparison.run import INITIAL_FILE, PlannedRun
from fedcore.comparison.workers.models import first_of
from fedcore.comparison.workers.processes import WorkerReport
from fedcore.comparison.workers.training import RoundDone, WorkerReady, train_alone
from fedcore.flower.app import FlowerApp

SURVIVAL = Path(__file__).parents[2] / "apps" / "survival"
LATE = "late_app.imported_by_a_step"
FORWARD = f"""

class Late(nn.Linear):
    def forward(self, x):
        import {LATE}
        return super().forward(x)
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[PlannedRun]:
    """Of an app whose model imports a module when it is first used."""
    folder = tmp_path / "app"
    shutil.copytree(SURVIVAL, folder)
    (folder / "survival_app").rename(folder / "late_app")
    for path in (folder / "pyproject.toml", *folder.glob("late_app/*.py")):
        text = path.read_text().replace("survival_app", "late_app").replace("nn.Linear(", "Late(")
        path.write_text(text.replace("FEATURES, TRAINING", f"{FORWARD}\n\nFEATURES, TRAINING", 1))
    (folder / "late_app" / "imported_by_a_step.py").touch()
    app = FlowerApp.load(folder)
    (chosen,) = parse_modes("local")
    made = PlannedRun(
        app=app, chosen=chosen, config=app.run_config, settings={}, sites=2, seed=1, folder=tmp_path / "run"
    )
    made.folder.mkdir()
    first_of(made).model.save(made.folder / INITIAL_FILE)
    yield made
    for name in [name for name in sys.modules if name.partition(".")[0] == "late_app"]:
        del sys.modules[name]


def test_a_worker_has_imported_what_a_step_needs_before_its_first_round(run: PlannedRun) -> None:
    imported = list[tuple[str, bool]]()

    def report(one: WorkerReport) -> None:
        imported.append((type(one).__name__, LATE in sys.modules))

    train_alone(report, run, 0)
    assert imported == [(WorkerReady.__name__, True), *[(RoundDone.__name__, True)] * 2]
