"""How the study of the bound on staleness is read out of its runs."""

import math

import pytest

from benchmarks.ssp import report, to_target
from fedcore.comparison.results import CurvePoint, RunResult, Staleness


def point(number, accuracy):
    return CurvePoint(
        round=number,
        samples=100 * number,
        seconds=0.5 * number,
        simulated_seconds=2.0 * number,
        bytes_up=0.0,
        bytes_down=0.0,
        metrics={"accuracy": accuracy},
    )


def result(bound, oldest, *accuracies):
    curve = tuple(point(number, accuracy) for number, accuracy in enumerate(accuracies))
    staleness = Staleness(clocks={0: 6, oldest: 2}, updates={1: 8}, bound=bound)
    return RunResult(
        mode="ps-ssp", kind="ps-ssp", seed=1, curve=curve, staleness=staleness, simulated_seconds=curve[-1].seconds * 4
    )


def test_the_time_to_a_target_is_interpolated_at_its_first_crossing():
    curve = result(0.0, 0, 0.1, 0.8, 1.0, 0.5, 0.95).curve
    assert to_target(curve, 0.9) == pytest.approx((3.0, 150.0))
    assert to_target(curve[:2], 0.9) == (math.inf, math.inf)


def test_a_bound_that_was_passed_and_a_clock_that_is_off_show_in_the_figures():
    runs = {
        ("transient", 0.0): [result(0.0, 0, 0.1, 0.9), result(0.0, 0, 0.1, 0.5, 0.9)],
        ("transient", 3.0): [result(3.0, 4, 0.1, 0.9), result(3.0, 3, 0.1, 0.9)],
        ("transient", math.inf): [result(None, 40, 0.1, 0.5), result(None, 40, 0.1, 0.9)],
    }
    rates = {(0.01, "ps-sync"): (200.0, 100.0), (0.04, "ps-sync"): (110.0, 100.0), (0.04, "ps-async"): (95.0, 100.0)}
    made = report(runs, rates)
    figures = {figure.name: figure for figure in made.figures}
    assert (figures["staleness_beyond_bound"].value, figures["staleness_beyond_bound"].holds) == (1.0, False)
    assert figures["ssp3_over_bsp_seconds_transient"].value == pytest.approx(2.0 / 3.0)
    # That of the short steps is shown, but it is no figure.
    assert figures["simulated_rate_off_slept"].value == pytest.approx(0.1)
    times, ages, _ = made.tables
    assert times.rows[2][2:4] == ("reached by 1 of 2", "reached by 1 of 2")
    assert ages.rows[1][2:] == ("75", "0", "0", "25", "0", "0")
