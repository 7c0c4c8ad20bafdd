"""What a headline may claim, and what it may not."""

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from support.comparisons import made_up, made_up_run

from fedcore.comparison.judging import JudgedBy
from fedcore.comparison.report import Comparison
from fedcore.comparison.report.curves import curve_drawings
from fedcore.comparison.report.story import headline
from fedcore.comparison.report.summary import JudgedMetric
from fedcore.comparison.report.tables import main_table
from fedcore.comparison.report.verdicts import Claim, SamplingError, claim, claims_of, judged
from fedcore.comparison.results import CurvePoint, RunResult, SiteResult, SumCheck

NONE = SamplingError()


def run_of(
    label: str, seed: int, value: float, *, name: str = "accuracy", examples: int = 0, **changes: object
) -> RunResult:
    """A run whose last model has this value, on so many test examples of one site; 0 if nobody knows how many."""
    last = CurvePoint(round=1, metrics={name: value})
    sites = (SiteResult(site="client-1", examples=examples, metrics={name: value}),) if examples else ()
    return replace(made_up_run(label, seed=seed, curve=(last,), **changes), sites=sites)


def compared(
    values: dict[str, list[float]], *, name: str = "accuracy", better: str = "max", examples: int = 0
) -> Comparison:
    runs = [
        run_of(label, seed, value, name=name, examples=examples)
        for label, of in values.items()
        for seed, value in enumerate(of, start=1)
    ]
    seeds = max(map(len, values.values()))
    judged_by = JudgedBy(name=name, better="max" if better == "max" else "min")
    return made_up(",".join(values), seeds=seeds, runs=tuple(runs), judged_by=judged_by)


def the_claim(comparison: Comparison, about: str) -> Claim:
    (one,) = (one for one in claims_of(comparison) if one.about == about)
    return one


def leads(*values: float, error: SamplingError = NONE, claims: int = 1) -> Claim:
    return judged(Claim(about="alone", label="a", other="b", metric="accuracy"), values, error, claims=claims)


def test_the_interval_is_students() -> None:
    """Of two seeds 12.706 / sqrt(2) standard deviations on each side, of five 2.776 / sqrt(5)."""
    two, five = leads(0.0, 0.2), leads(0.0, 0.05, 0.1, 0.15, 0.2)
    assert (two.high - 0.1) / two.sd == pytest.approx(12.706 / math.sqrt(2), rel=1e-3)  # type: ignore[operator]
    assert (five.high - 0.1) / five.sd == pytest.approx(2.776 / math.sqrt(5), rel=1e-3)  # type: ignore[operator]
    assert (two.verdict, five.verdict) == ("open", "ahead")
    assert leads(0.0, 0.05, 0.1, 0.15, 0.2, claims=6).verdict == "open"


def test_more_than_a_standard_deviation_of_two_seeds_is_no_victory() -> None:
    """Report of TCGA: -0.072 and 0.266 over two seeds; the 95 % interval of 0.1978 there was -0.49 to 0.88."""
    it = leads(0.144, 0.2516)
    assert abs(it.lead or 0) > (it.sd or 0)
    assert it.verdict == "open"
    assert it.low == pytest.approx(0.1978 - 0.6833, abs=2e-3)


def test_how_many_seeds_would_tell() -> None:
    it = leads(0.0, 0.05, 0.1)
    assert it.needed == 7
    more = [0.05 + step * 0.05 / math.sqrt(3 / 2) for step in (-1, 1, -1, 1, -1, 1, 0)]
    assert leads(*[0.05 + (value - 0.05) for value in more]).verdict == "ahead"
    assert leads(1e-4, -0.3, 0.3).needed is None


def test_equal_differences_of_two_seeds_are_no_proof() -> None:
    step = 1 / 100
    assert leads(step, step, error=SamplingError(tested="unpaired", sd=0.0, step=step)).verdict == "open"
    assert leads(20 * step, 20 * step, error=SamplingError(tested="paired", sd=0.01, step=step)).verdict == "ahead"
    assert leads(0.5, 0.5).verdict == "open", "seeds that change nothing are one seed"


def test_one_seed_is_open_however_large_the_difference() -> None:
    it = leads(0.2, error=SamplingError(tested="paired", sd=0.01, step=0.001))
    assert (it.verdict, it.models) == ("open", "ahead")
    assert it.low == pytest.approx(0.2 - 1.96 * 0.01 - 0.001, abs=1e-4)


def test_few_test_examples_keep_a_claim_open_that_seeds_alone_would_make() -> None:
    values = {"federated": [0.80, 0.81, 0.82, 0.80, 0.81], "centralized": [0.70, 0.71, 0.72, 0.71, 0.71]}
    assert the_claim(compared(values), "pooled").verdict == "ahead"
    few, many = (the_claim(compared(values, examples=n), "pooled") for n in (50, 5000))
    assert (few.tested, few.verdict, few.needed) == ("unpaired", "open", None)
    assert many.verdict == "ahead"


def test_the_same_draws_of_the_test_examples_make_the_interval_narrow() -> None:
    """One model is right wherever the other is, and on 5 of 200 examples more."""
    rng = np.random.default_rng(3)
    weights = rng.multinomial(200, [1 / 200] * 200, size=100) / 200
    theirs = np.arange(200) < 150
    mine = np.arange(200) < 170
    runs = [
        run_of(label, seed, float(right.mean()), examples=200, bootstrap={"accuracy": tuple(weights @ right)})
        for label, right in (("federated", mine), ("centralized", theirs))
        for seed in (1, 2, 3, 4, 5)
    ]
    paired = the_claim(made_up(seeds=5, runs=tuple(runs)), "pooled")
    bound = the_claim(made_up(seeds=5, runs=tuple(replace(run, bootstrap={}) for run in runs)), "pooled")
    assert (paired.tested, paired.verdict, bound.tested, bound.verdict) == ("paired", "ahead", "unpaired", "ahead")
    assert (paired.high or 0) - (paired.low or 0) < 0.7 * ((bound.high or 0) - (bound.low or 0))


def test_a_loss_is_better_if_it_is_smaller() -> None:
    values = {"federated": [0.30, 0.31, 0.32], "centralized": [0.50, 0.51, 0.53]}
    it = the_claim(compared(values, name="rmse", better="min"), "pooled")
    assert (it.verdict, it.lead) == ("ahead", pytest.approx(0.2033, abs=1e-3))


def test_only_common_seeds_count_and_a_diverged_one_ends_the_claim() -> None:
    lacking = compared({"federated": [0.8, 0.81, 0.82, 0.8], "centralized": [0.7, 0.71, 0.72]})
    assert the_claim(lacking, "pooled").seeds == 3
    metric = JudgedMetric(name="loss", form=str, sign=-1)
    diverged = [run_of("centralized", seed, value, name="loss") for seed, value in ((1, 2.0), (2, math.inf))]
    one = claim("pooled", [run_of("federated", seed, 1.0, name="loss") for seed in (1, 2)], diverged, metric)
    assert (one.verdict, one.lead, one.seeds) == ("open", None, 2)


def test_a_gap_that_is_noise_is_not_closed() -> None:
    """TCGA: pooled less alone is 0.10 with a deviation of 0.16, and one of the seeds of federated is behind pooled."""
    values = {"federated": [0.70, 0.80], "local": [0.556, 0.549], "centralized": [0.772, 0.534]}
    text = " ".join(headline(compared(values, name="c_index")))
    assert "closes" not in text
    assert "whole gap" not in text
    assert "wins" not in text
    assert "not distinguishable at 2 seeds" in text


def test_a_gap_that_is_known_is_closed_with_an_interval_of_what_is_left() -> None:
    values = {"federated": [0.90, 0.91, 0.92], "local": [0.70, 0.71, 0.73], "centralized": [0.95, 0.955, 0.965]}
    _, worth, *rest = headline(compared(values, name="c_index"))
    assert worth.startswith("Federating wins over sites alone by 0.1967 of c_index (95 %: ")
    assert " and closes 81 % of the gap to pooled data; 0.0467 of c_index are left (95 %: " in worth
    assert not [sentence for sentence in rest if "centralized" in sentence], "it is said once"


def test_where_sites_alone_lead_it_is_said() -> None:
    values = {"federated": [0.70, 0.71, 0.72], "local": [0.90, 0.91, 0.93]}
    _, worth, *_ = headline(compared(values))
    assert worth.startswith("Here federating does not pay: it loses to sites alone by ")


def test_asynchrony_is_not_charged_to_secrecy() -> None:
    values = {"federated": [0.9, 0.91], "federated-plain": [0.9, 0.91], "federated-async": [0.5, 0.62]}
    made = compared(values)
    text = [sentence for sentence in headline(made) if sentence.startswith("Secure aggregation")]
    assert len(text) == 1
    assert "async" not in text[0]
    assert "chance" not in text[0]
    pairs = {one.about: (one.label, one.other, one.verdict) for one in claims_of(made) if one.about != "best"}
    assert pairs["secrecy"] == ("federated", "federated-plain", "equal")
    assert pairs["asynchrony"][:2] == ("federated-async", "federated")


def test_twins_have_the_same_options_and_the_same_point_of_a_sweep() -> None:
    runs = [
        run_of("federated", 1, 0.8, point={"lr": 0.1}),
        run_of("federated", 1, 0.9, point={"lr": 1.0}),
        run_of("federated-plain", 1, 0.85, point={"lr": 0.1}),
        run_of("federated-plain", 1, 0.7, point={"lr": 1.0}),
    ]
    it = the_claim(made_up("federated,federated-plain", runs=tuple(runs)), "secrecy")
    assert (it.verdict, it.lead) == ("differs", pytest.approx(0.2))
    other = compared({"federated[strategy=fedyogi]": [0.9], "federated-plain": [0.8]})
    assert not [one for one in claims_of(other) if one.about == "secrecy"]


def test_with_more_claims_on_a_page_each_needs_more() -> None:
    values = {"federated": [0.80, 0.81, 0.83], "centralized": [0.77, 0.79, 0.80]}
    few = the_claim(compared(values), "pooled")
    values |= {mode: [0.7, 0.71, 0.72] for mode in ("allreduce", "local", "diloco", "ps-sync", "ps-async")}
    many = the_claim(compared(values), "pooled")
    assert (few.verdict, many.verdict) == ("ahead", "ahead")
    assert (many.low or 0) < 0.8 * (few.low or 0)


def test_among_many_modes_one_that_is_far_behind_is_not_taken_for_the_best() -> None:
    """Ten modes on digits: local was 32 points behind centralized, with three seeds that agree to a point."""
    near = {mode: [0.966, 0.972, 0.969] for mode in ("allreduce", "diloco", "ps-sync", "ps-ssp", "federated")}
    values = {"centralized": [0.991, 0.982, 0.985], "local": [0.66, 0.67, 0.65], "ps-async": [0.93, 0.96, 0.95], **near}
    best = {one.other: one.verdict for one in claims_of(compared(values, examples=359)) if one.about == "best"}
    assert best["local"] == "ahead"
    assert {verdict for other, verdict in best.items() if other != "local"} == {"open"}


def test_a_gap_is_open_unless_federating_wins() -> None:
    """Otherwise it would need its share of the chance to err."""
    values = {"federated": [0.80, 0.60, 0.78], "local": [0.70, 0.71, 0.69], "centralized": [0.90, 0.91, 0.9]}
    made = compared(values, name="c_index")
    assert [the_claim(made, about).verdict for about in ("alone", "gap")] == ["open", "open"]
    values["federated"] = [0.80, 0.812, 0.79]
    made = compared(values, name="c_index")
    assert [the_claim(made, about).verdict for about in ("alone", "gap")] == ["ahead", "ahead"]


def test_data_are_called_pooled_only_if_somebody_counted_them() -> None:
    """An app with a loop of its own may train on one site's 300 rows in the mode of pooled data."""
    values = {"federated": [0.90, 0.91, 0.92], "local": [0.70, 0.71, 0.73], "centralized": [0.95, 0.955, 0.965]}
    made = compared(values, name="c_index")
    assert ", pooled 0.9567" in headline(made)[0]
    runs = tuple(replace(run, samples=None) if run.mode == "centralized" else run for run in made.runs)
    unknown = replace(made, runs=runs)
    text = " ".join(headline(unknown))
    assert ", centralized 0.9567" in text
    assert "pooled" not in text
    head, rows = main_table(unknown)
    assert "all data pooled" not in {row[head.index("seen by")] for row in rows}


@pytest.mark.parametrize(
    ("status", "said"), [("differs", "are not the plain means"), ("holds", "that were checked are the plain means")]
)
def test_what_secrecy_costs_rests_on_the_check_of_its_sums(status: Literal["differs", "holds"], said: str) -> None:
    made = compared({"federated": [0.63, 0.75], "federated-plain": [0.92, 0.92]})
    unchecked = [text for text in headline(made) if text.startswith("Secure aggregation: ")]
    assert "or by a fault" in unchecked[0]
    checks = (SumCheck(mode="federated", seed=1, round=1, status=status, tensor="w", difference=0.5, bound=1e-6),)
    (checked,) = (text for text in headline(replace(made, sum_checks=checks)) if text.startswith("Secure aggregation"))
    assert said in checked
    assert "chance" not in unchecked[0] + checked


def test_modes_that_all_left_out_are_named() -> None:
    made = replace(compared({"federated": [0.9]}), left_out=("federated-dp: it needs dp-epsilon",))
    assert headline(made)[-1] == "Left out: federated-dp: it needs dp-epsilon."


def test_the_start_is_said_to_be_out_of_the_seconds_only_if_it_was_measured() -> None:
    made = made_up(network=None)
    measured = replace(made, runs=tuple(replace(run, start_seconds=3.0) for run in made.runs))
    for comparison, said in ((measured, "Without the start"), (made, "first round of centralized and federated.")):
        (caption,) = (one.caption for one in curve_drawings(comparison) if one.name == "accuracy-seconds")
        assert said in caption
