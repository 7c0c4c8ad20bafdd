"""Falls, divergence, models next to chance, losses that stand still: said in sentences, and no wider than they are."""

import math
from dataclasses import replace

import pytest
from support.comparisons import made_up, made_up_run

from fedcore.comparison.judging import JudgedBy
from fedcore.comparison.report import Comparison, SiteSplit
from fedcore.comparison.report.summary import JudgedMetric, best_points
from fedcore.comparison.report.verdicts import claims_of
from fedcore.comparison.report.verdicts.stability import dip, instability
from fedcore.comparison.results import CurvePoint, RunResult, SiteResult

TEN = {str(label): 10 for label in range(10)} | {"3": 12}


def run_of(
    label: str, values: list[float], *, seed: int = 1, name: str = "c_index", losses: tuple[float, ...] = ()
) -> RunResult:
    """A run with these values of its metric from the first model on, and these losses of training from round 1 on."""
    curve = tuple(
        CurvePoint(round=n, metrics={name: value}, train_loss=losses[n - 1] if n and losses else None)
        for n, value in enumerate(values)
    )
    sites = (SiteResult(site="client-1", examples=360, metrics={name: values[-1]}),)
    return replace(made_up_run(label, seed=seed, curve=curve), sites=sites)


def compared(*runs: RunResult, name: str = "c_index") -> Comparison:
    labels = ",".join(dict.fromkeys(run.mode for run in runs))
    split = (SiteSplit(site="client-1", training=102, test=360, labels=TEN),)
    seeds = len({run.seed for run in runs})
    judged_by = JudgedBy(name=name, better="max")
    return made_up(labels, seeds=seeds, runs=runs, judged_by=judged_by, split=split)


def said_of(comparison: Comparison) -> list[str]:
    metric = JudgedMetric.of(comparison)
    assert metric is not None
    return list(instability(comparison, best_points(comparison), metric))


def test_a_fall_in_the_last_round_is_said() -> None:
    """TCGA: the pooled run had 0.737 and ended with 0.535."""
    made = compared(run_of("federated", [0.5, 0.6, 0.70, 0.72]), run_of("centralized", [0.5, 0.7, 0.737, 0.535]))
    (fall, chance) = said_of(made)
    assert fall.startswith("centralized fell from c_index 0.7370 in round 2 to 0.5350 in its last round")
    assert chance.startswith("centralized ends at 0.5350 c_index; chance is 0.5000")


def test_of_several_seeds_the_worst_fall_is_said_and_how_many_there_are() -> None:
    runs = [run_of("centralized", [0.5, 0.7, 0.8, last], seed=seed) for seed, last in ((1, 0.6), (2, 0.55), (3, 0.8))]
    (fall,) = said_of(compared(*runs))
    assert "fell with seed 2 from c_index 0.8000 in round 2 to 0.5500" in fall
    assert "less with 1 more of 3 seeds" in fall


@pytest.mark.parametrize("values", [[0.5, 0.7, 0.74, 0.72], [0.5, 0.4, 0.7, 0.74], [0.5, 0.74], [0.5, 0.74, 0.74]])
def test_the_noise_of_a_curve_is_no_fall(values: list[float]) -> None:
    made = compared(run_of("federated", values))
    assert not said_of(made)
    metric = JudgedMetric.of(made)
    assert metric is not None
    assert dip(made.runs, metric) == 0


def test_a_claim_allows_for_falls_on_the_way() -> None:
    """No run of pooled data ended in such a round, and every one of them had one."""
    steady, pooled = [0.5, 0.7, 0.7, 0.7, 0.7], [0.5, 0.8, 0.8, 0.6, 0.8]
    seeds = (1, 2, 3)
    runs = [run_of("federated", [one + 0.001 * seed for one in steady], seed=seed) for seed in seeds]
    stable = [run_of("centralized", [0.5, 0.8, 0.8, 0.8, 0.8], seed=seed) for seed in seeds]
    (claim,) = claims_of(compared(*runs, *stable))
    assert claim.verdict == "behind"
    (claim,) = claims_of(compared(*runs, *(run_of("centralized", pooled, seed=seed) for seed in seeds)))
    assert claim.verdict == "open"
    assert (claim.high or 0) > 0


def test_a_diverged_mode_is_named_with_its_seeds() -> None:
    runs = [run_of("centralized", [0.5, 0.6, last], seed=seed) for seed, last in ((1, 0.7), (2, math.nan))]
    assert said_of(compared(*runs)) == [
        "centralized diverged with seed 2: its last model has a c_index or a loss that is not finite."
    ]


def test_a_mode_that_learnt_next_to_nothing_is_named_with_the_chance_level() -> None:
    """The report of digits: ps-async ended at 22.98 %, chance is 10 and the majority class 11.2."""
    runs = (
        run_of("federated", [0.1, 0.8, 0.95], name="accuracy"),
        run_of("ps-async", [0.1, 0.2, 0.2298], name="accuracy"),
    )
    (said,) = said_of(compared(*runs, name="accuracy"))
    assert said == "ps-async ends at 22.98 % accuracy; chance is 10.00 %, the majority class 11.76 %."


def test_a_seed_that_learnt_next_to_nothing_is_named_though_the_mean_did() -> None:
    runs = [
        run_of("ps-async", [0.1, last], seed=seed, name="accuracy") for seed, last in ((1, 0.9), (2, 0.1), (3, 0.95))
    ]
    (sentence,) = [text for text in said_of(compared(*runs, name="accuracy")) if "chance" in text]
    assert sentence.startswith("ps-async ends at accuracy 10.00 % with seed 2; chance is 10.00 %")


def test_a_training_loss_that_does_not_move_is_said() -> None:
    """An app with BatchNorm whose averaged statistics undid what every round had learnt."""
    still = run_of("federated", [0.5, 0.63, 0.64, 0.63], losses=(0.693, 0.691, 0.692))
    moving = run_of("federated-plain", [0.5, 0.7, 0.8, 0.92], losses=(0.69, 0.4, 0.2))
    said = said_of(compared(still, moving))
    assert "In federated the training loss stands still: 0.6930 in the first round, 0.6920 in the last." in said
    assert not [text for text in said if text.startswith("In federated-plain")]
