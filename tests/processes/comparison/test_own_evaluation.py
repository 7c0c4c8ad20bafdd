"""An app whose ServerApp evaluates, as Flower's own templates do, in modes with a server and without one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.reporting_app import JUDGING, reporting_app

from fedcore import CompareJob, FlowerApp, execute_comparison, parse_modes
from fedcore.comparison.execution import RunStart
from fedcore.comparison.judging import JudgedBy, MetricChoice
from fedcore.wire.events import EventSink, ignore

# The fork server may need long to import torch.


@contextlib.contextmanager
def unwatched(start: RunStart) -> Iterator[EventSink]:
    yield ignore


def test_every_mode_is_judged_by_what_the_server_app_evaluates(tmp_path: Path) -> None:
    """One step on all examples is the mean of those of the sites, up to rounding."""
    job = CompareJob(
        app=FlowerApp.load(reporting_app(tmp_path, server=JUDGING)),
        modes=parse_modes("federated,centralized"),
        sites=2,
        out=tmp_path / "out",
        metric=MetricChoice(name="accuracy"),
    )
    comparison = execute_comparison(job, unwatched)
    assert [run.reason for run in comparison.runs] == ["", ""]
    assert (comparison.judged_by, comparison.own_evaluation) == (JudgedBy(name="accuracy", better="max"), True)
    assert len({run.initial_sha256 for run in comparison.runs}) == 1
    *_, central = comparison.runs
    for run in comparison.runs:
        assert run.by_server == ("accuracy", "eval_loss")
        assert [point.round for point in run.curve] == [0, 1, 2]
        assert [set(point.metrics) - {*run.by_server} for point in run.curve] == [
            set(),
            {"clients/eval_loss", "own"},
            {"clients/eval_loss", "own"},
        ]
        for point, same in zip(run.curve, central.curve, strict=True):
            assert point.metrics["accuracy"] == pytest.approx(same.metrics["accuracy"], rel=1e-3)
