"""The plot of a comparison: whole rounds, a line for each mode and value, a band over the seeds."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.comparisons import made_up, made_up_run

from fedcore.api.comparing import ComparisonResult


def test_a_line_has_a_band_over_the_seeds_and_the_axis_whole_rounds() -> None:
    made = made_up(
        "federated,local", runs=tuple(made_up_run(m, seed=s) for m in ("federated", "local") for s in (1, 2))
    )
    axes = ComparisonResult(report=made, folder=Path()).plot()
    assert [line.get_label() for line in axes.get_lines()] == ["federated", "local"]
    assert len(axes.collections) == 2
    ends = [run.metrics["accuracy"] for run in made.runs if run.mode == "federated"]
    assert axes.get_lines()[0].get_ydata()[-1] == pytest.approx(sum(ends) / 2)
    (band,) = axes.collections[0].get_paths()
    last = [y for x, y in band.vertices if x == 6]
    assert max(last) - min(last) == pytest.approx(2**0.5 * abs(ends[0] - ends[1]))
    short = made_up("federated", runs=(made_up_run("federated", rounds=2),))
    axes = ComparisonResult(report=short, folder=Path()).plot()
    assert all(tick == int(tick) for tick in axes.get_xticks())


def test_each_value_of_a_sweep_has_a_line() -> None:
    runs = tuple(made_up_run("federated", seed=seed, point={"lr": lr}) for lr in (0.1, 0.2) for seed in (1, 2))
    axes = ComparisonResult(report=made_up("federated", runs=runs), folder=Path()).plot("accuracy")
    assert [line.get_label() for line in axes.get_lines()] == ["federated, lr=0.1", "federated, lr=0.2"]
