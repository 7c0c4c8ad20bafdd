"""A new mode is one class and one row: here one that only this test knows, from the command line to the report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from fedcore.compare.carry_out import carry_out
from fedcore.compare.measure.clock import centralized_seconds
from fedcore.compare.measure.network import Cost, Network
from fedcore.compare.modes import MODES, Option, parse_modes
from fedcore.compare.modes.baseline import Baseline, RoundLog
from fedcore.compare.plan import CompareJob
from fedcore.compare.report import write_report
from fedcore.compare.run import PlannedRun
from fedcore.compare.workers.processes import Workers
from fedcore.compare.workers.schedule import Schedule
from fedcore.compare.workers.training import train_pooled
from fedcore.events import ignore
from fedcore.flower.app import FlowerApp

# The fork server may need long to import torch.
pytestmark = pytest.mark.timeout(600)

APP = Path(__file__).parents[2] / "apps" / "blobs"


@dataclass(frozen=True, kw_only=True)
class SmallSteps(Baseline):
    """All data in one place, in steps on a part of the app's batch."""

    consequence: ClassVar[str] = "nobody else trains, so that the run ended"

    @property
    def options(self) -> Mapping[str, Option]:
        return {"parts": Option(2, least=1), "ranks": Option(1)}

    def global_batch(self, run: PlannedRun) -> int:
        return int(run.config["batch-size"]) // int(run.options["parts"])

    def start(self, run: PlannedRun, workers: Workers) -> tuple[str, ...]:
        workers.start("small", train_pooled, run)
        return ("small",)

    def clock(self, run: PlannedRun, log: RoundLog, schedule: Schedule, cost: Cost, network: Network) -> list[float]:
        return centralized_seconds(schedule, self.global_batch(run), len(log.rounds), cost)


def test_a_new_mode_is_one_class_and_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = SmallSteps(name="small-steps", title="many steps on little")
    monkeypatch.setitem(MODES, row.name, row)
    job = CompareJob(
        app=FlowerApp.load(APP),
        modes=parse_modes("small-steps[parts=4],centralized"),
        sites=2,
        out=tmp_path / "out",
        network=Network.parse("lan,step=1ms,example=10us"),
        run_config={"num-server-rounds": 2},
    )
    comparison = carry_out(job, lambda start: nullcontext(ignore))
    write_report(comparison, job.out)

    small, pooled = comparison.runs
    assert [(run.status, run.reason, run.kind) for run in comparison.runs] == [
        ("finished", "", "small-steps"),
        ("finished", "", "centralized"),
    ]
    assert small.initial_sha256 == pooled.initial_sha256
    assert small.curve[0] == pooled.curve[0]
    assert [point.samples for point in small.curve] == [point.samples for point in pooled.curve]
    assert small.steps["small"] > 3 * pooled.steps["pooled"]
    assert small.simulated_seconds > pooled.simulated_seconds
    assert [site.site for site in small.sites] == ["client-1", "client-2"]
    report = json.loads((job.out / "report.json").read_text())
    assert [mode["title"] for mode in report["modes"]] == ["many steps on little", "all data in one place"]
    assert "small-steps[parts=4]" in (job.out / "report.html").read_text()
