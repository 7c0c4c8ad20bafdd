"""Several apps in one comparison: what each takes of the command, what has to be equal, and the report of all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.comparisons import made_up
from support.raising import raises

from fedcore.comparison.app_probe import AppFacts, report_facts
from fedcore.comparison.design.several_apps import app_jobs, check_folder, common_metric, lay_over, suited
from fedcore.comparison.judging import MetricChoice
from fedcore.comparison.modes import parse_modes
from fedcore.comparison.plan import CompareJob, plan
from fedcore.comparison.report import Comparison
from fedcore.comparison.report.fairness import fairness
from fedcore.comparison.report.files import Report
from fedcore.comparison.report.tables import settings_rows
from fedcore.comparison.report.verdicts.pairs import claims_of
from fedcore.comparison.results import SumCheck
from fedcore.comparison.workers.processes import WorkerReport
from fedcore.errors import ConfigurationError, UnknownKey
from fedcore.flower.app import FlowerApp

EXAMPLES = Path(__file__).parents[3] / "examples"
ROWS = ("a", "b")


def apps() -> list[FlowerApp]:
    """The first has no seed in its run config."""
    trees, digits = (FlowerApp.load(EXAMPLES / name) for name in ("trees", "digits"))
    config = {key: value for key, value in trees.run_config.items() if key != "seed"}
    return [replace(trees, run_config=config), digits]


def job(modes: str = "federated,centralized", **changes: Any) -> CompareJob:
    values = {"app": apps()[0], "modes": parse_modes(modes), "sites": 2, "out": Path("/nowhere")}
    return CompareJob(**{**values, **changes})


def facts(**changes: Any) -> AppFacts:
    return AppFacts(**{"refusal": "", "metrics": {"auc": "max", "loss": "min"}, "targets": ROWS, **changes})


def test_each_app_takes_what_it_knows_and_has_a_folder_of_its_own() -> None:
    config = {"num-server-rounds": 2, "max-depth": 2, "lr": 0.5}
    jobs = app_jobs(job(run_config=config, sweep={"join-seconds": (9,)}), apps(), seeds="2")
    assert list(jobs) == [app.name for app in apps()]
    trees, digits = jobs.values()
    assert (trees.run_config, digits.run_config) == (
        {"num-server-rounds": 2, "max-depth": 2},
        {"num-server-rounds": 2, "lr": 0.5},
    )
    own = digits.app.run_config["seed"]
    assert isinstance(own, int)
    assert (trees.seeds, digits.seeds) == ((), (own, own + 1))
    assert [len(plan(one)) for one in jobs.values()] == [2, 4]
    assert trees.out != digits.out
    assert {one.out.parents[1] for one in jobs.values()} == {Path("/nowhere")}
    (_, alone) = app_jobs(job(), apps(), seeds="").values()
    assert (alone.seeds, alone.more_seeds) == ((own,), False)


def test_what_no_app_knows_is_refused() -> None:
    with raises(UnknownKey, key="max-dept"):
        app_jobs(job(run_config={"max-dept": 2}), apps(), seeds="")
    with raises(ConfigurationError, check="same-name"):
        app_jobs(job(), [apps()[0], apps()[0]], seeds="")
    with raises(ConfigurationError, check="key-needed"):
        app_jobs(job(), [apps()[0], replace(apps()[0], name="other")], seeds="1,2")


@pytest.mark.parametrize(
    ("other", "check"),
    [
        ({"targets": ("a", "c")}, "other-rows"),
        ({"targets": ("a", "")}, "unknown-rows"),
        ({"refusal": "its own loop", "targets": ()}, "unknown-rows"),
        ({"metrics": {"rmse": "min"}}, "no-such-metric"),
    ],
)
def test_apps_that_cannot_be_judged_alike_are_refused(other: dict[str, Any], check: str) -> None:
    names = [app.name for app in apps()]
    jobs = app_jobs(job(), apps(), seeds="")
    with raises(ConfigurationError, check=check):
        suited(jobs, dict(zip(names, (facts(), facts(**other)), strict=True)))


def test_a_mode_is_for_the_apps_that_can_have_it_and_the_report_says_for_which_it_was_not() -> None:
    names = [app.name for app in apps()]
    known = dict(zip(names, (facts(trees=True), facts()), strict=True))
    jobs = app_jobs(job("federated,allreduce"), apps(), seeds="")
    trees, digits = suited(jobs, known).values()
    assert [[mode.label for mode in one.modes] for one in (trees, digits)] == [
        ["federated"],
        ["federated", "allreduce"],
    ]
    whole = lay_over(dict(zip(names, reports(), strict=True)), jobs, known)
    (left_out,) = whole.left_out
    assert left_out.startswith(f"{names[0]}: allreduce")
    for modes, each, check in (
        ("allreduce", (facts(trees=True), facts(trees=True)), "modes-refused"),
        ("allreduce", (facts(trees=True), facts()), "no-mode"),
    ):
        with raises(ConfigurationError, check=check):
            suited(app_jobs(job(modes), apps(), seeds=""), dict(zip(names, each, strict=True)))


def test_the_metric_is_the_first_that_all_have_unless_it_is_named() -> None:
    both = {"a": facts(), "b": facts(metrics={"f1": "max", "loss": "min", "auc": "max"})}
    assert common_metric(None, both).name == "auc"
    assert common_metric(MetricChoice.parse("loss"), both).name == "loss"
    with raises(ConfigurationError, check="no-such-metric"):
        common_metric(MetricChoice.parse("f1"), both)


def reports() -> tuple[Comparison, Comparison]:
    """Of two apps that were trained on the same rows, with other first models and settings; the first has no seed."""
    modes = "federated,centralized,local"
    first, other = (made_up(modes, seeds=count) for count in (1, 2))
    runs = tuple(replace(run, initial_sha256="f" * 64, precision="float64", seed=0) for run in first.runs)
    no_mean = SumCheck(mode="federated", seed=0, round=1, status="unknown", reason="no mean")
    alike = SumCheck(mode="federated", seed=1, round=1, status="holds", tensor="w")
    return (
        replace(first, app="trees", runs=runs, seeds=(0,), run_config={"max-depth": 3}, sum_checks=(no_mean,)),
        replace(other, app="digits", sum_checks=(alike,)),
    )


def test_the_report_measures_each_app_against_itself_and_takes_no_difference_of_apps_for_unfair() -> None:
    jobs = app_jobs(job(), apps(), seeds="2")
    trees, digits = jobs
    seeds = reports()[1].seeds
    jobs[digits] = replace(jobs[digits], seeds=seeds)
    whole = lay_over(dict(zip(jobs, reports(), strict=True)), jobs, {trees: facts(), digits: facts()})
    sums = {one.name: one.status for one in fairness(whole) if "Secure" in one.name}
    assert sums == {"Secure equals plain of trees": "unknown", "Secure equals plain of digits": "holds"}
    assert whole.apps.keys() == {"trees", "digits"}
    assert len(whole.labels) == 6
    assert {run.seed for run in whole.runs} == set(whole.seeds) == set(seeds)
    assert {one.name for one in fairness(whole) if one.status == "differs"} == set()
    names = [one.name for one in fairness(whole)]
    assert [sum(name.startswith(text) for name in names) for text in ("Initial weights", "Secure equals plain")] == [
        2,
        2,
    ]
    of_app = {label: app for app, labels in whole.apps.items() for label in labels}
    about = [one for one in claims_of(whole) if one.about in ("alone", "pooled", "gap")]
    assert about
    assert all(of_app[one.label] == of_app[one.other] for one in about)
    best = [one for one in claims_of(whole) if one.about == "best"]
    assert len({of_app[one.other] for one in best} | {of_app[one.label] for one in best}) == 2
    assert all(any(f"({label})" in text for text in Report.of(whole).headline) for label in whole.labels[::3])
    assert any(name == "run config of trees: max-depth" for rows in settings_rows(whole) for name, _ in rows)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    check_folder(tmp_path / "new")
    check_folder(tmp_path)
    (tmp_path / "apps").mkdir()
    check_folder(tmp_path)
    (tmp_path / "apps").rename(tmp_path / "theses")
    with raises(ConfigurationError, check="other-folder"):
        check_folder(tmp_path)


def facts_of(name: str, sites: int, **config: Any) -> AppFacts:
    made: list[WorkerReport] = []
    (run,) = plan(job("local", app=FlowerApp.load(EXAMPLES / name), sites=sites, run_config=config))
    report_facts(made.append, run)
    (known,) = made
    assert isinstance(known, AppFacts)
    return known


def test_the_same_rows_are_known_by_their_targets() -> None:
    first, again, other = facts_of("trees", 2), facts_of("trees", 2), facts_of("trees", 3)
    assert first.targets == again.targets
    assert len(set(first.targets) | set(other.targets)) == 5
