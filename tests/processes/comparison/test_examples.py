"""The examples with losses and metrics of their own, in modes that train them without their server.

All that a mode needs is in the app: the loss, the metric that the modes are judged by, the statistics of the columns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.raising import raises

from fedcore import CompareJob, FlowerApp, execute_comparison, parse_modes
from fedcore.comparison.execution import RunStart
from fedcore.comparison.judging import JudgedBy
from fedcore.errors import ConfigurationError
from fedcore.wire.events import EventSink, ignore

EXAMPLES = Path(__file__).parents[3] / "examples"

# The fork server may need long to import torch.


@contextlib.contextmanager
def unwatched(start: RunStart) -> Iterator[EventSink]:
    yield ignore


def compared(name: str, modes: str, sites: int, folder: Path, rounds: int):
    job = CompareJob(
        app=FlowerApp.load(EXAMPLES / name),
        modes=parse_modes(modes),
        sites=sites,
        out=folder / "out",
        run_config={"num-server-rounds": rounds},
    )
    return execute_comparison(job, unwatched)


def figures(comparison, name: str) -> dict[str, float]:
    assert [run.status for run in comparison.runs] == ["finished"] * len(comparison.runs), comparison.runs
    assert len({run.initial_sha256 for run in comparison.runs}) == 1
    return {run.kind: run.metrics[name] for run in comparison.runs}


def test_cox_is_judged_by_its_c_index(tmp_path: Path) -> None:
    comparison = compared("cox", "centralized,local,local-sgd", 6, tmp_path, rounds=4)
    assert comparison.judged_by == JudgedBy(name="c_index", better="max")
    found = figures(comparison, "c_index")
    # Patients of 24 to 200 others know less than those of all sites together.
    assert found["local"] < 0.68 < 0.7 < min(found["centralized"], found["local-sgd"])


def test_a_mode_that_would_cut_the_patients_of_a_batch_is_refused(tmp_path: Path) -> None:
    with raises(ConfigurationError, check="modes-refused", match=r"allreduce.*cox"):
        compared("cox", "centralized,allreduce", 6, tmp_path, rounds=1)


def test_air_fills_in_and_standardises_alike_in_every_mode(tmp_path: Path) -> None:
    # The last one has almost no ozone.
    comparison = compared("air", "centralized,allreduce,local", 4, tmp_path, rounds=6)
    assert comparison.judged_by == JudgedBy(name="r2", better="max")
    found = figures(comparison, "r2")
    assert found["centralized"] == pytest.approx(found["allreduce"], abs=0.05)
    assert found["centralized"] > 0.8
