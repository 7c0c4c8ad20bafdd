"""Which metric a comparison goes by, and that every sentence knows which way is better."""

from dataclasses import replace
from typing import Any

import pytest
from support.comparisons import made_up, made_up_run
from support.raising import raises

from fedcore.comparison.judging import JudgedBy, MetricChoice, choose, known_by_name
from fedcore.comparison.report import Comparison
from fedcore.comparison.report.curves import curve_drawings
from fedcore.comparison.report.fairness import fairness
from fedcore.comparison.report.story import OWN_EVALUATION, headline
from fedcore.comparison.report.summary import best_points
from fedcore.comparison.report.tables import caption, loss_name, main_table, metrics_table, sites_table
from fedcore.comparison.results import CurvePoint, Metrics, RunResult, SiteResult
from fedcore.errors import ConfigurationError

C_INDEX, RMSE = JudgedBy(name="c_index", better="max"), JudgedBy(name="rmse", better="min")


def run(mode: str, metrics: Metrics, *, seed: int = 1, **changes: Any) -> RunResult:
    """A run whose models have these metrics after one round, and again after the second."""
    curve = tuple(CurvePoint(round=number, samples=9 * number, seconds=1.0, metrics=metrics) for number in (1, 2))
    return replace(made_up_run(mode, seed=seed, curve=curve), **changes)


def comparison(*runs: RunResult, judged_by: JudgedBy | None = C_INDEX, **changes: Any) -> Comparison:
    modes = ",".join(dict.fromkeys(run.mode for run in runs))
    return made_up(modes, seeds=max(run.seed for run in runs), runs=runs, judged_by=judged_by, **changes)


def test_the_metric_is_the_apps_first_or_the_one_that_is_named() -> None:
    known = {"c_index": "max", "rmse": "min", "loss": "min"}
    assert choose(None, known) == C_INDEX
    assert choose(MetricChoice.parse("rmse"), known) == RMSE
    assert choose(MetricChoice.parse("rmse:max"), known) == JudgedBy(name="rmse", better="max"), (
        "who says so is believed"
    )
    assert choose(None, {}) is None


def test_names_alone_say_what_is_better_for_accuracies_and_losses() -> None:
    known = known_by_name(["kappa", "eval_loss", "eval_acc"])
    assert list(known.items()) == [("eval_acc", "max"), ("eval_loss", "min"), ("kappa", None)]
    assert choose(None, known) == JudgedBy(name="eval_acc", better="max")
    assert choose(None, known_by_name(["kappa"])) is None
    assert choose(MetricChoice.parse("kappa:max"), known) == JudgedBy(name="kappa", better="max")


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("c_indx", {"check": "no-such-metric", "match": "c_index:max.*kappa"}),
        ("kappa", {"check": "no-direction", "match": "kappa:max.*kappa:min"}),
        ("kappa:up", {"check": "metric-form", "match": "'kappa:up'"}),
        (":max", {"check": "metric-form", "match": "':max'"}),
    ],
)
def test_a_metric_that_cannot_be_judged_by_is_refused(wanted: str, said: dict[str, str]) -> None:
    with raises(ConfigurationError, **said):
        choose(MetricChoice.parse(wanted), {"c_index": "max", "kappa": None})


def test_a_larger_loss_is_no_worse_model_where_the_c_index_says_otherwise() -> None:
    runs = (run("federated", {"c_index": 0.72, "loss": 2.9}), run("centralized", {"c_index": 0.70, "loss": 3.19}))
    first, second, *_ = headline(comparison(*runs))
    assert first == "Together c_index 0.7200, pooled 0.7000; the server saw only sums."
    assert second == (
        "federated is ahead of centralized by 0.0200 of c_index (one seed, without an interval): "
        "how much chance plays is not known."
    )


@pytest.mark.parametrize(("judged_by", "federated"), [(C_INDEX, 0.6), (RMSE, 0.8)])
def test_worse_is_less_of_one_metric_and_more_of_another(judged_by: JudgedBy, federated: float) -> None:
    runs = [run("centralized", {judged_by.name: 0.7 + seed / 1000}, seed=seed) for seed in (1, 2)]
    runs += [run("federated", {judged_by.name: federated + seed / 2000}, seed=seed) for seed in (1, 2)]
    first, second, *_ = headline(comparison(*runs, judged_by=judged_by))
    assert first.startswith(f"Together {judged_by.name} {federated:.1f}")
    assert second.startswith("federated loses to centralized by 0.")


def test_of_a_sweep_the_smallest_error_is_the_best_point() -> None:
    runs = [run("local", {"rmse": rmse}, point={"lr": rmse}) for rmse in (2.0, 1.0, 3.0)]
    swept = comparison(*runs, judged_by=RMSE)
    assert best_points(swept)["local"] == (runs[1],)
    assert main_table(swept)[1][1][2:5] == ("1.0000", "–", "nobody")


def test_the_table_has_the_metric_and_the_loss_and_every_other_number_has_a_name() -> None:
    metrics: Metrics = {"c_index": 0.7, "loss": 2.5, "kappa": 0.3, "per_class": (0.1, 0.2)}
    whole = comparison(run("centralized", metrics), run("federated", {**metrics, "c_index": 0.6}))
    head, rows = main_table(whole)
    assert head[:4] == ("mode", "c_index", "seen by", "loss")
    assert (rows[1][0], rows[1][1], rows[1][3]) == ("federated", "0.6000", "2.5000")
    assert metrics_table(whole) == (
        ("metric", "centralized", "federated"),
        [("kappa", "0.3000", "0.3000"), ("per_class[0]", "0.1000", "0.1000"), ("per_class[1]", "0.2000", "0.2000")],
    )


def test_figures_and_sites_go_by_the_metric() -> None:
    sites = (SiteResult(site="client-1", examples=3, metrics={"c_index": 0.5, "loss": 1.0}),)
    whole = comparison(run("centralized", {"c_index": 0.7}, sites=sites))
    assert [drawing.name for drawing in curve_drawings(whole)][:1] == ["c-index-samples"]
    assert sites_table(whole) == (("mode: c_index", "client-1"), [("centralized", "0.5000")])


def test_without_a_metric_to_judge_by_nothing_is_said_to_be_best() -> None:
    (sentence,) = headline(comparison(run("centralized", {"kappa": 0.3}), judged_by=None))
    assert sentence == "No metric says whether more of it is better; there are kappa. Name one: --metric kappa:max"
    assert curve_drawings(comparison(run("centralized", {"kappa": 0.3}), judged_by=None)) == []


def test_models_of_single_sites_are_also_told_on_everybodys_examples() -> None:
    sites = tuple(
        SiteResult(site=f"client-{i}", examples=3, metrics={"c_index": 0.8}, everywhere={"c_index": 0.5 + i / 10})
        for i in (1, 2)
    )
    whole = comparison(run("local", {"c_index": 0.8}, sites=sites), run("centralized", {"c_index": 0.7}))
    assert "the more the sites differ, a site's own model has c_index 0.8000." in headline(whole)[1]


def test_what_the_app_evaluates_itself_is_said_to_be_its_own() -> None:
    own = comparison(run("federated", {"c_index": 0.7}, sites=(), samples=None), own_evaluation=True)
    assert headline(own)[-1] == OWN_EVALUATION
    assert "as the app's own evaluation reports them" in caption(own)
    both = [run(mode, {"c_index": 0.7}, sites=(), samples=None) for mode in ("federated", "federated-plain")]
    checks = {check.name: check for check in fairness(comparison(*both, own_evaluation=True))}
    of = "not known of federated, federated-plain"
    assert (checks["Test examples"].status, checks["Examples trained on"].status) == ("unknown", "unknown")
    assert checks["Test examples"].detail.endswith(f"{of}: the app's own evaluation")
    assert f"{of}: the app's own loop takes them" in checks["Examples trained on"].detail


def test_the_report_says_whose_evaluation_is_judged_by() -> None:
    metrics: Metrics = {"c_index": 0.7, "loss": 1.0, "clients/c_index": 0.6, "clients/loss": 2.0}
    own = comparison(run("federated", metrics, by_server=("c_index", "loss")), own_evaluation=True)
    assert headline(own)[-1] == (
        "c_index is what the evaluate_fn of the ServerApp gives, on the same examples in every mode; clients/c_index "
        "and clients/loss are what its clients report."
    )
    assert loss_name(own) == "loss"


def test_rounds_without_a_point_on_the_curves_are_named() -> None:
    whole = run("centralized", {"c_index": 0.7})
    first, last = whole.curve
    gap = replace(run("federated", {"c_index": 0.7}), curve=(replace(first, metrics={}), last))
    plain = replace(gap, mode="federated-plain", kind="federated-plain")
    assert headline(comparison(whole, gap, plain))[-1] == (
        "In federated and federated-plain not every site evaluated the models of round 1: the curves have no point "
        "there."
    )
    assert "In federated the app reports no c_index of round 1" in " ".join(
        headline(comparison(whole, gap, own_evaluation=True))
    )
    assert not any("no point" in sentence for sentence in headline(comparison(whole)))


def test_a_quantity_that_is_not_known_has_no_figure() -> None:
    own = run("federated", {"c_index": 0.7})
    curve = (CurvePoint(round=0, metrics={"c_index": 0.5}), *(replace(point, samples=None) for point in own.curve))
    names = [drawing.name for drawing in curve_drawings(comparison(replace(own, curve=curve)))]
    assert "c-index-samples" not in names
    assert "c-index-rounds" in names
