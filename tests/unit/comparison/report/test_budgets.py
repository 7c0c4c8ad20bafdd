"""Models at equal budgets, and who chose the values of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.comparisons import made_up, made_up_run
from support.raising import raises

from fedcore.comparison.design.budget import Budget
from fedcore.comparison.report import Comparison
from fedcore.comparison.report.fairness import fairness
from fedcore.comparison.report.story import headline
from fedcore.comparison.report.summary import summarize
from fedcore.comparison.report.tables import main_table
from fedcore.comparison.results import CurvePoint, RunResult, Trial
from fedcore.errors import ConfigurationError


def trained(mode: str, accuracies: Sequence[float], *, steps: float, samples: int = 100, **changes: Any) -> RunResult:
    """A run with so many steps and examples in each of its rounds."""
    curve = tuple(
        CurvePoint(
            round=number,
            samples=samples * number,
            steps=steps * number,
            seconds=2.0 * number,
            metrics={"accuracy": accuracy},
        )
        for number, accuracy in enumerate((0.1, *accuracies))
    )
    return made_up_run(mode, curve=curve, samples=curve[-1].samples, simulated_seconds=None, **changes)


def compared(*runs: RunResult, **changes: Any) -> Comparison:
    modes = ",".join(dict.fromkeys(run.mode for run in runs))
    return made_up(modes, seeds=len({run.seed for run in runs}), runs=runs, network=None, cost=None, **changes)


def statuses(comparison: Comparison) -> dict[str, str]:
    return {check.name: check.status for check in fairness(comparison)}


TOGETHER = trained("federated", [0.5, 0.6, 0.7, 0.71], steps=10)
POOLED = trained("centralized", [0.6, 0.72, 0.75, 0.8], steps=35)


def test_at_equal_steps_the_last_model_at_or_before_them_counts() -> None:
    """140 steps of pooled data end in their fourth round; 40 steps lie between its first round and its second."""
    together, pooled = summarize(compared(TOGETHER, POOLED))
    assert together.at_equal["steps"].metric.mean == 0.71
    assert pooled.at_equal["steps"].metric.mean == 0.6
    assert (pooled.at_equal["steps"].steps.mean, pooled.at_equal["steps"].round.mean) == (35, 1)
    assert pooled.at_equal["examples"].metric.mean == 0.8
    assert pooled.at_equal["seconds"].seconds.mean == 8.0


def test_the_headline_says_how_many_times_the_other_budget_was() -> None:
    sentences = " ".join(headline(compared(TOGETHER, POOLED)))
    assert "3.5 times the steps" in sentences
    assert "(140 against 40)" in sentences
    assert "60.00 %" in sentences
    head, rows = main_table(compared(TOGETHER, POOLED))
    column = next(index for index, title in enumerate(head) if title.startswith("at equal steps"))
    assert [row[column] for row in rows] == ["71.00 (40)", "60.00 (35)"]


def test_a_mode_whose_first_round_takes_more_steps_has_no_model_there() -> None:
    short = trained("federated", [0.5], steps=10)
    _, pooled = summarize(compared(short, trained("centralized", [0.8], steps=35)))
    assert "steps" not in pooled.at_equal
    assert "3.5 times the steps" in " ".join(headline(compared(short, trained("centralized", [0.8], steps=35))))


def test_where_steps_are_equal_or_unknown_nothing_is_said_of_them() -> None:
    unknown = replace(POOLED, curve=tuple(replace(point, steps=None) for point in POOLED.curve))
    for other in (trained("centralized", [0.5, 0.6, 0.7, 0.8], steps=10), unknown):
        assert "equal steps" not in " ".join(headline(compared(TOGETHER, other)))
        assert not any("equal steps" in title for title in main_table(compared(TOGETHER, other))[0])


def test_under_equal_steps_it_is_examples_that_differ() -> None:
    long = trained("federated", [0.5, 0.6, 0.7, 0.71, 0.74, 0.78, 0.79], steps=20, samples=100)
    comparison = compared(long, POOLED, budget="steps")
    assert "1.8 times the examples" in " ".join(headline(comparison))
    assert "0.57 times the examples" in " ".join(headline(comparison)), "and not 0.6"
    assert statuses(comparison)["Steps"] == "holds"
    assert "Examples trained on" not in statuses(comparison)
    assert statuses(compared(TOGETHER, POOLED, budget="steps"))["Steps"] == "differs"


def test_each_seed_has_a_budget_of_its_own() -> None:
    runs = [replace(run, seed=seed) for seed in (1, 2) for run in (TOGETHER, POOLED)]
    runs[2] = replace(trained("federated", [0.5, 0.6], steps=40), seed=2)
    together, pooled = summarize(compared(*runs))
    assert together.at_equal["steps"].steps.mean == (40 + 80) / 2
    assert pooled.at_equal["steps"].steps.mean == (35 + 70) / 2


def test_seconds_are_the_least_that_any_mode_took_or_what_was_named() -> None:
    quick = replace(POOLED, curve=tuple(replace(point, seconds=point.seconds / 4) for point in POOLED.curve))
    together, _ = summarize(compared(TOGETHER, quick, budget="seconds"))
    assert together.at_equal["seconds"].metric.mean == 0.5
    together, pooled = summarize(compared(TOGETHER, quick, budget="seconds:4"))
    assert (together.at_equal["seconds"].metric.mean, pooled.at_equal["seconds"].metric.mean) == (0.6, 0.8)


def test_a_target_says_what_it_took() -> None:
    budget = "target:accuracy:0.7"
    comparison = compared(TOGETHER, POOLED, budget=budget, target=Budget.parse(budget).target)
    sentences = " ".join(headline(comparison))
    assert "300 examples" in sentences
    assert "200 examples" in sentences
    assert "examples to it" in main_table(comparison)[0]


@pytest.mark.parametrize("text", ["rounds", "seconds:", "seconds:0", "seconds:soon", "target", "target:", "steps:3"])
def test_what_is_no_budget_is_refused(text: str) -> None:
    with raises(ConfigurationError, check="budget-form"):
        Budget.parse(text)


def test_of_a_sweep_the_headline_says_that_test_data_chose() -> None:
    low, high = replace(TOGETHER, point={"lr": 0.1}), replace(trained("federated", [0.2], steps=10), point={"lr": 1.0})
    comparison = compared(low, high)
    assert statuses(comparison)["Test data chose nothing"] == "differs"
    assert any("lr=0.1" in sentence and "--tune" in sentence for sentence in headline(comparison))
    assert statuses(compared(TOGETHER, POOLED))["Test data chose nothing"] == "holds"


def test_what_validation_data_chose_is_said_and_held_equal() -> None:
    trials = tuple(Trial(point={"lr": rate}, value=0.5) for rate in (0.1, 1.0))
    tuned = [replace(run, tuned={"lr": rate}, trials=trials) for run, rate in ((TOGETHER, 0.1), (POOLED, 1.0))]
    comparison = compared(*tuned, tune={"lr": (0.1, 1.0)}, validation=0.2)
    assert statuses(comparison)["Test data chose nothing"] == "holds"
    assert any("federated 0.1; centralized 1.0" in sentence for sentence in headline(comparison))
    unequal = compared(tuned[0], replace(tuned[1], trials=trials[:1]), tune={"lr": (0.1, 1.0)}, validation=0.2)
    assert statuses(unequal)["Test data chose nothing"] == "differs"


def test_a_best_value_at_the_end_of_those_tried_is_named() -> None:
    rates = {"federated": 1.0, "centralized": 0.1, "local": 0.5}
    runs = [
        replace(run, tuned={"lr": rates[run.mode]}, trials=(Trial(point={"lr": rates[run.mode]}, value=0.5),))
        for run in (TOGETHER, POOLED, trained("local", [0.5, 0.6], steps=10))
    ]
    text = " ".join(headline(compared(*runs, tune={"lr": (0.1, 0.5, 1.0)}, validation=0.2)))
    assert "For federated the best lr is the largest that was tried, 1;" in text
    assert "For centralized the best lr is the smallest that was tried, 0.1;" in text
    assert "For local" not in text


def test_what_trials_spent_of_privacy_stands_next_to_the_epsilon_of_training() -> None:
    trials = tuple(
        Trial(point={"lr": rate}, value=0.5, epsilon_spent=spent) for rate, spent in ((0.1, 8.0), (1.0, 7.5))
    )
    runs = [
        replace(made_up_run("federated-dp"), epsilon_spent=8.0, tuned={"lr": 0.1}, trials=of) for of in (trials, ())
    ]
    tuned, plain = (compared(run) for run in runs)
    (one,) = summarize(tuned)
    assert (one.epsilon, one.trials_epsilon) == (8.0, 15.5)
    (sentence,) = [text for text in headline(tuned) if "(8.000, 1e-05)" in text]
    assert "15.500 more" in sentence
    assert "(23.500, 3e-05)" in sentence
    assert any("ε 8 (trials 15.5 more)" in cell for row in main_table(tuned)[1] for cell in row)
    assert summarize(plain)[0].trials_epsilon is None
    assert all("trials" not in text for text in headline(plain))
    failed = replace(runs[0], trials=(trials[0], Trial(point={"lr": 1.0}, status="failed")))
    assert any("what 1 of them spent is not known" in text for text in headline(compared(failed)))
