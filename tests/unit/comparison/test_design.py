"""Budgets, tuning and seeds of a comparison, before the first run and without processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.raising import raises
from support.tiny import TINY
from torch.utils.data import DataLoader, TensorDataset

from fedcore.comparison.app_probe import AppFacts
from fedcore.comparison.design.budget import Budget
from fedcore.comparison.design.course import by_mode
from fedcore.comparison.design.equal_steps import StepsOfRounds, report_steps, with_rounds
from fedcore.comparison.design.seeds import QUICK_SECONDS, further_seeds
from fedcore.comparison.design.trials import chosen_for
from fedcore.comparison.design.tuning import Tuning, best_trial, trial_of
from fedcore.comparison.execution import build_comparison
from fedcore.comparison.folder import OutFolder
from fedcore.comparison.judging import JudgedBy
from fedcore.comparison.modes import parse_modes
from fedcore.comparison.plan import CompareJob, plan, plan_trials
from fedcore.comparison.results import CurvePoint, RunResult, Trial
from fedcore.comparison.run import PlannedRun
from fedcore.comparison.workers.problem import Problem
from fedcore.data.types import Split
from fedcore.data.validation import set_apart
from fedcore.errors import ConfigurationError, UnknownKey
from fedcore.flower.app import FlowerApp
from fedcore.flower.apps.engine_app import with_validation
from fedcore.flower.apps.progress_protocol import VALIDATION_VARIABLE

BLOBS = Path(__file__).parents[2] / "apps" / "blobs"
ACCURACY = JudgedBy(name="accuracy", better="max")
RATES = Tuning(values={"lr": (0.1, 1.0)})


def job(modes: str = "federated,centralized", *, app: Path = BLOBS, **changes: Any) -> CompareJob:
    values = {"modes": parse_modes(modes), "sites": 2, "out": Path("/nowhere"), **changes}
    return CompareJob(app=FlowerApp.load(app), **values)


def judged(run: PlannedRun, accuracy: float) -> RunResult:
    return run.result(curve=(CurvePoint(round=1, metrics={"accuracy": accuracy}),))


def part(count: int) -> Split:
    return Split(x=np.arange(count, dtype=np.float32)[:, None], y=np.zeros(count, np.int64))


# --- budgets ---------------------------------------------------------------------------------------------------------


def test_every_mode_makes_as_many_steps_as_the_one_with_the_most() -> None:
    """Sites of 40 and 50 examples: 12 batches of 8 together, 5 and 7 (the last is smaller) of each alone."""
    runs = plan(job("federated,local,centralized,allreduce,local-sgd,ps-sync,ps-async,ps-ssp,federated-plain"))
    reports: list[Any] = []
    report_steps(reports.append, runs)
    (report,) = reports
    assert isinstance(report, StepsOfRounds)
    steps = {run.mode.name: count for run, count in zip(runs, report.steps, strict=True)}
    assert {steps[name] for name in ("centralized", "allreduce", "ps-sync")} == {12}
    assert {steps[name] for name in ("federated", "local", "ps-async", "ps-ssp", "federated-plain")} == {6}
    assert steps["local-sgd"] == 6
    rounds = {run.mode.name: run.config["num-server-rounds"] for run in with_rounds(runs, report.steps)}
    assert (rounds["centralized"], rounds["federated"], rounds["local-sgd"]) == (2, 4, 4)


def test_a_mode_never_trains_less_than_its_app_says() -> None:
    long, short = plan(job(run_config={"num-server-rounds": 3}))
    assert [run.config["num-server-rounds"] for run in with_rounds((long, short), [7.0, 10.0])] == [4, 3]


def test_each_seed_has_steps_of_its_own() -> None:
    runs = plan(job(seeds=(1, 2)))
    rounds = [run.config["num-server-rounds"] for run in with_rounds(runs, [5.0, 5.0, 10.0, 20.0])]
    assert rounds == [4, 8, 2, 2]


def test_an_app_with_its_own_loop_has_no_equal_steps_and_no_validation_data() -> None:
    facts = AppFacts(refusal="own loop")
    with raises(ConfigurationError, check="unknown-steps"):
        facts.check_design(job(app=TINY, budget=Budget.parse("steps")))
    with raises(ConfigurationError, check="no-validation"):
        facts.check_design(job(app=TINY, tuning=RATES))
    facts.check_design(job(app=TINY, budget=Budget.parse("target:eval_acc:0.9")))


def test_a_target_is_a_metric_of_the_app() -> None:
    facts = AppFacts(refusal="", metrics={"accuracy": "max", "loss": "min"}, validation=True)
    facts.check_design(job(budget=Budget.parse("target:accuracy:0.9"), tuning=RATES))
    with raises(ConfigurationError, check="no-such-metric"):
        facts.check_design(job(budget=Budget.parse("target:eval_acc:0.9")))


def test_a_folder_belongs_to_one_budget_that_changes_runs(tmp_path: Path) -> None:
    asked = job(out=tmp_path / "out")
    with OutFolder(asked.out).opened(asked, force=False):
        pass
    OutFolder(asked.out).check(replace(asked, budget=Budget.parse("seconds:3")), force=False)
    for other in (replace(asked, budget=Budget.parse("steps")), replace(asked, tuning=RATES)):
        with raises(ConfigurationError, check="other-comparison"):
            OutFolder(asked.out).check(other, force=False)


# --- tuning ----------------------------------------------------------------------------------------------------------


def test_each_mode_and_seed_has_the_same_trials() -> None:
    trials = plan_trials(job(seeds=(1, 2), tuning=Tuning(values={"lr": (0.1, 1.0), "momentum": (0.0, 0.9)}, share=0.3)))
    assert len(trials) == 2 * 2 * 4
    assert {trial.validation for trial in trials} == {0.3}
    assert {trial.environment()[VALIDATION_VARIABLE] for trial in trials} == {"0.3"}
    assert len({trial.folder for trial in trials}) == 16
    assert {trial.folder.parent.name for trial in trials} == {"tuning"}
    assert not {trial.warm_group for trial in trials if trial.warm_group} & {run.warm_group for run in plan(job())}


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"modes": "federated[lr=0.2],local"}, ConfigurationError, {"check": "unequal-trials"}),
        ({"sweep": {"lr": (0.1, 0.2)}}, ConfigurationError, {"check": "tuned-elsewhere"}),
        ({"tuning": Tuning(values={"seed": (1, 2)})}, ConfigurationError, {"check": "tuned-elsewhere"}),
        ({"tuning": Tuning(values={"rate": (1, 2)})}, UnknownKey, {"key": "rate"}),
        ({"tuning": Tuning(values={"field-bits": (21, 32)})}, ConfigurationError, {"check": "unequal-trials"}),
    ],
)
def test_what_not_every_mode_can_choose_is_refused(changes: dict[str, Any], error: type[Exception], says: Any) -> None:
    with raises(error, **says):
        plan_trials(job(**{"tuning": RATES, **changes}))


def test_a_tuning_has_values_to_choose_from_and_a_share() -> None:
    with raises(ConfigurationError, check="one-value"):
        Tuning(values={"lr": (0.1,)})
    for share in (0.0, 1.0):
        with raises(ConfigurationError, check="share"):
            Tuning(values={"lr": (0.1, 1.0)}, share=share)


def test_a_trial_keeps_what_it_spent_of_privacy() -> None:
    (run, *_) = plan_trials(job("federated", tuning=RATES))
    for changes in ({}, {"status": "failed"}):
        trial = trial_of(replace(judged(run, 0.5), epsilon_spent=2.5, **changes), ["lr"], ACCURACY)
        assert trial.epsilon_spent == 2.5


def test_the_best_trial_is_the_first_with_the_best_number() -> None:
    trials = [
        Trial(point={"lr": 0.1}, value=float("nan")),
        Trial(point={"lr": 0.2}, value=0.7),
        Trial(point={"lr": 0.3}, value=0.7),
        Trial(point={"lr": 0.4}, status="failed"),
    ]
    assert best_trial(trials, ACCURACY) == trials[1]
    assert best_trial([*trials, Trial(point={"lr": 0.5}, value=0.1)], JudgedBy(name="loss", better="min")).value == 0.1
    assert best_trial(trials[:1], ACCURACY) is None


def test_a_run_takes_what_its_own_trials_chose() -> None:
    asked = job(seeds=(1, 2), tuning=RATES, sweep={"momentum": (0.0, 0.9)})
    runs, trials = plan(asked), plan_trials(asked)
    best = {("federated", 1): 1.0, ("federated", 2): 0.1, ("centralized", 1): 0.1, ("centralized", 2): 1.0}
    results = [judged(run, 0.9 if run.config["lr"] == best[run.mode.name, run.seed] else 0.5) for run in trials]
    for run in runs:
        choice = chosen_for(run, trials, results, ACCURACY)
        assert choice.tuned == {"lr": best[run.mode.name, run.seed]}
        assert choice.run == replace(run, config={**run.config, "lr": best[run.mode.name, run.seed]})
        assert [trial.point for trial in choice.trials] == [{"lr": 0.1}, {"lr": 1.0}]


def test_the_report_says_what_was_tuned() -> None:
    asked = job("local", tuning=RATES, budget=Budget.parse("target:accuracy:0.9"))
    runs = plan(asked)
    facts = AppFacts(refusal="", metrics={"accuracy": "max"})
    made = build_comparison(asked, runs, [judged(run, 0.5) for run in runs], facts)
    assert (made.tune, made.validation) == ({"lr": (0.1, 1.0)}, 0.2)
    assert isinstance(made.run_config["lr"], str), "it is no single number"
    assert (made.budget, made.target) == ("target:accuracy:0.9", asked.budget.target)


def test_validation_data_are_a_part_of_the_training_data() -> None:
    rest, validation = set_apart(part(10), 10, 0.2, seed=1)
    assert (len(rest), len(validation)) == (8, 2)
    assert sorted([*rest.x.ravel(), *validation.x.ravel()]) == list(range(10))
    again = set_apart(part(10), 10, 0.2, seed=1)[1]
    assert np.array_equal(again.x, validation.x)
    assert any(not np.array_equal(set_apart(part(10), 10, 0.2, seed=seed)[1].x, validation.x) for seed in range(2, 9))
    assert [len(one) for one in set_apart(part(2), 2, 0.01, seed=1)] == [1, 1]
    listed = [(float(number), 0) for number in range(5)]
    rest, validation = set_apart(listed, 5, 0.4, seed=1)
    assert sorted([*map(tuple, rest), *map(tuple, validation)]) == listed


@pytest.mark.parametrize("data", [part(1), DataLoader(TensorDataset(torch.zeros(4, 1)))])
def test_of_some_data_no_validation_data_can_be_set_apart(data: Any) -> None:
    with raises(ConfigurationError):
        set_apart(data, len(data), 0.2, seed=1)


def test_only_a_process_that_tunes_sets_validation_data_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    app = FlowerApp.load(BLOBS)
    problem = Problem.load(app, config=app.run_config, sites=2)
    training, test = problem.training(0), problem.test(0)
    assert (len(training), len(test)) == (40, 20)
    monkeypatch.setenv(VALIDATION_VARIABLE, "0.25")
    rest, validation = problem.training(0), problem.test(0)
    assert (len(rest), len(validation)) == (30, 10)
    assert {row.tobytes() for row in validation.x} < {row.tobytes() for row in training.x}
    assert not {row.tobytes() for row in validation.x} & {row.tobytes() for row in rest.x}
    assert problem.training(0) is rest, "it is divided once"
    assert problem.schedule.counts == (30, 38), "a trial's steps are those of what it trains on"
    assert with_validation(problem.data) is problem.data


# --- seeds -----------------------------------------------------------------------------------------------------------


def lasting(*seconds: float, status: str = "finished") -> list[RunResult]:
    return [RunResult(mode="local", kind="local", seed=3, status=status, wall_seconds=one) for one in seconds]


def test_four_more_seeds_follow_one_that_took_seconds() -> None:
    assert further_seeds(3, lasting(20.0, 30.0))[0] == (4, 5, 6, 7)
    assert further_seeds(3, lasting(20.0, QUICK_SECONDS - 20))[0] == ()
    assert further_seeds(3, lasting(20.0), trials=QUICK_SECONDS)[0] == ()
    assert further_seeds(3, [*lasting(1.0), *lasting(1.0, status="failed")])[0] == ()


def test_runs_of_more_seeds_have_folders_of_their_own_and_come_by_mode() -> None:
    asked = job()
    runs = plan(asked)
    more = plan(replace(asked, seeds=(4, 5)), first=len(runs) + 1)
    assert len({run.folder for run in (*runs, *more)}) == 6
    every = (*runs, *more)
    ordered, results = by_mode(asked, every, [run.result() for run in every])
    assert [(run.mode.name, run.seed) for run in ordered] == [
        ("federated", 3), ("federated", 4), ("federated", 5),
        ("centralized", 3), ("centralized", 4), ("centralized", 5),
    ]  # fmt: skip
    assert [(result.mode, result.seed) for result in results] == [(run.label, run.seed) for run in ordered]
