"""In which order runs are carried out, and what is known of them before."""

from dataclasses import replace
from pathlib import Path

from support.raising import raises

from fedcore.comparison.app_probe import AppFacts
from fedcore.comparison.execution import build_comparison, check_metric, finished, in_groups, seconds_left
from fedcore.comparison.judging import JudgedBy, MetricChoice
from fedcore.comparison.modes import parse_modes
from fedcore.comparison.plan import CompareJob, plan
from fedcore.comparison.report import SiteSplit
from fedcore.comparison.results import CurvePoint, RunResult
from fedcore.comparison.run import PlannedRun
from fedcore.errors import ConfigurationError
from fedcore.flower.app import FlowerApp
from fedcore.simulation.devices.network import Cost
from fedcore.wire.base import Scalar

DIGITS = Path(__file__).parents[3] / "examples" / "digits"


def job(modes: str, out: Path = Path("/nowhere"), **fixed: Scalar) -> CompareJob:
    return CompareJob(
        app=FlowerApp.load(DIGITS),
        modes=parse_modes(modes),
        sites=2,
        out=out,
        seeds=(1, 2),
        sweep={"lr": (0.1, 0.2), **{key.replace("_", "-"): (value,) for key, value in fixed.items()}},
    )


def result(run: PlannedRun, *, seconds: float = 1.0, status: str = "finished") -> RunResult:
    return RunResult(mode=run.label, kind=run.mode.name, seed=run.seed, wall_seconds=seconds, status=status)


def test_runs_of_one_federation_come_one_after_the_other() -> None:
    runs = plan(job("federated,local,federated-plain,federated[strategy=fedadam]"))
    order = in_groups(runs)
    assert [run.label for _, run in order[::4]] == [
        "federated", "federated[strategy=fedadam]", "local", "federated-plain",
    ]  # fmt: skip
    assert sorted(number for number, _ in order) == list(range(16))
    assert all(runs[number] is run for number, run in order)


def test_what_finished_is_kept_and_what_failed_is_not(tmp_path: Path) -> None:
    runs = plan(job("local", tmp_path))
    for run, status in zip(runs, ("finished", "failed", "finished"), strict=False):
        run.folder.mkdir(parents=True)
        result(run, status=status).save(run.folder)
    assert sorted(finished(runs)) == [0, 2]


def test_the_time_left_is_that_of_runs_like_them() -> None:
    runs = plan(job("local,centralized,allreduce"))
    assert seconds_left(runs, {}) is None
    done = {0: result(runs[0], seconds=10.0), 4: result(runs[4], seconds=100.0)}
    # Three of each that ran, four of the one that never did.
    assert seconds_left(runs, done) == 3 * 10 + 3 * 100 + 4 * 55


def test_a_comparison_says_what_held_for_all_runs() -> None:
    asked = job("federated,local", batch_size=8, field_bits=32)
    runs = plan(asked)
    split = (SiteSplit(site="client-1", training=3, test=1),)
    made = build_comparison(
        asked, runs, [result(run) for run in runs], AppFacts(refusal="", split=split, cost=Cost(step=1, example=0))
    )
    assert (made.seeds, made.partition, made.split) == ((1, 2), "dirichlet:0.5", split)
    assert made.run_config["batch-size"] == 8
    assert made.run_config["lr"] == 0.05, "a sweep stands in the runs"
    assert made.settings["field-bits"] == 32
    assert made.changed == ("batch-size", "field-bits", "w-max"), "w-max by the app, the others by the sweep"
    assert [(mode.label, mode.kind) for mode in made.modes] == [("federated", "federated"), ("local", "local")]
    assert len(made.runs) == 8


def test_the_metric_of_an_app_of_its_own_is_looked_for_in_its_first_run() -> None:
    asked = replace(job("federated"), metric=MetricChoice(name="c_index"))
    run, *_ = plan(asked)
    facts = AppFacts(refusal="own loop")
    evaluated = replace(result(run), curve=(CurvePoint(round=1, metrics={"eval_acc": 0.5, "pair": (1.0, 2.0)}),))
    check_metric(asked, facts, result(run))
    with raises(ConfigurationError, check="no-such-metric", match="eval_acc:max.*pair"):
        check_metric(asked, facts, evaluated)
    check_metric(replace(asked, metric=MetricChoice(name="eval_acc")), facts, evaluated)
    made = build_comparison(replace(asked, metric=None), [run], [evaluated], facts)
    assert (made.judged_by, made.own_evaluation) == (JudgedBy(name="eval_acc", better="max"), True)


def test_a_failed_run_does_not_say_which_metrics_there_are() -> None:
    """Its ServerApp did not come to its end, and its figures are not there."""
    asked = replace(job("federated"), metric=MetricChoice(name="accuracy"))
    run, *_ = plan(asked)
    failed = replace(result(run, status="failed"), curve=(CurvePoint(round=1, metrics={"eval_acc": 0.5}),))
    check_metric(asked, AppFacts(refusal="own loop"), failed)
    assert build_comparison(asked, [run], [failed], AppFacts(refusal="own loop")).judged_by is None


def test_figures_of_the_server_app_come_before_those_of_clients() -> None:
    asked = job("federated")
    run, *_ = plan(asked)
    metrics = {"eval_acc": 0.5, "loss": 1.0, "clients/loss": 2.0}
    evaluated = replace(result(run), curve=(CurvePoint(round=1, metrics=metrics),), by_server=("loss",))
    made = build_comparison(asked, [run], [evaluated], AppFacts(refusal="own loop"))
    assert made.judged_by == JudgedBy(name="loss", better="min")
