"""Whose test examples, and how much a site counts: the four means, who gains, and the worst site."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from support.comparisons import made_up, made_up_run

from fedcore.comparison.judging import JudgedBy
from fedcore.comparison.report import Comparison
from fedcore.comparison.report.sites import SiteMeans, site_gains, site_means_table, site_sentences
from fedcore.comparison.report.story import headline
from fedcore.comparison.report.summary import JudgedMetric
from fedcore.comparison.results import CurvePoint, RunResult, SiteResult

EXAMPLES = (104, 89, 16, 45)
COMMON = (0.70, 0.72, 0.56, 0.64)
OWN = (0.72, 0.70, 0.87, 0.73)
EVERYWHERE = (0.70, 0.60, 0.50, 0.55)


def run(mode: str, values: Sequence[float], everywhere: Sequence[float] = (), *, seed: int = 1) -> RunResult:
    """One whose metric is on everybody's examples what its sites' figures make of it."""
    sites = tuple(
        SiteResult(
            site=f"client-{index + 1}",
            examples=examples,
            metrics={"accuracy": value},
            everywhere={"accuracy": everywhere[index]} if everywhere else {},
        )
        for index, (examples, value) in enumerate(zip(EXAMPLES, values, strict=True))
    )
    whole = float(np.mean(everywhere)) if everywhere else float(np.average(values, weights=EXAMPLES))
    made = made_up_run(mode, seed=seed, curve=(CurvePoint(round=1, metrics={"accuracy": whole}),))
    return replace(made, sites=sites)


def judged(better: str = "max") -> JudgedMetric:
    comparison = made_up(judged_by=JudgedBy(name="accuracy", better="max" if better == "max" else "min"))
    metric = JudgedMetric.of(comparison)
    assert metric is not None
    return metric


def both(together: Sequence[RunResult], alone: Sequence[RunResult], metric: JudgedMetric) -> tuple[str, str]:
    """Who leads, and how many sites gain."""
    first, later = site_sentences(together, alone, metric)
    leads, gains = (*first, *later)
    return leads, gains


def heart(*, seeds: int = 1) -> Comparison:
    runs = [run("local", OWN, EVERYWHERE, seed=seed) for seed in range(1, seeds + 1)]
    runs += [run("federated", COMMON, seed=seed) for seed in range(1, seeds + 1)]
    return made_up("local,federated", seeds=seeds, runs=tuple(runs))


def test_the_four_means() -> None:
    alone, together = (SiteMeans.of(one, judged()) for one in heart().runs)
    assert alone.everybody == pytest.approx(np.mean(EVERYWHERE))
    assert alone.everybody_weighted == pytest.approx(np.average(EVERYWHERE, weights=EXAMPLES))
    assert alone.own == pytest.approx(np.mean(OWN))
    assert alone.own_weighted == pytest.approx(np.average(OWN, weights=EXAMPLES))
    assert together.own == pytest.approx(np.mean(COMMON))
    # Of a common model, the shares of right answers weighted by examples are that of all.
    assert together.everybody == together.everybody_weighted
    assert together.everybody == pytest.approx(together.own_weighted)


def test_a_site_without_a_figure_has_no_weight() -> None:
    known = run("federated", COMMON)
    without = SiteResult(site="client-9", examples=1000, metrics={})
    means = SiteMeans.of(replace(known, sites=(*known.sites, without)), judged())
    assert means.own_weighted == pytest.approx(np.average(COMMON, weights=EXAMPLES))
    assert SiteMeans.of(replace(known, sites=(without,)), judged()).own_weighted is None


@pytest.mark.parametrize("better", ["max", "min"])
def test_gains_are_by_site_and_seed(better: str) -> None:
    together = [run("federated", COMMON), run("federated", OWN, seed=2)]
    alone = [run("local", OWN, EVERYWHERE), run("local", OWN, EVERYWHERE, seed=2), run("local", OWN, seed=3)]
    gains = site_gains(together, alone, judged(better))
    sign = 1 if better == "max" else -1
    assert [gain.examples for gain in gains] == list(EXAMPLES)
    for gain, mine, theirs in zip(gains, COMMON, OWN, strict=True):
        assert gain.gains == {1: pytest.approx(sign * (mine - theirs)), 2: 0.0}
        assert gain.gain == pytest.approx(sign * (mine - theirs) / 2)
        assert (gain.together, gain.alone) == (pytest.approx((mine + theirs) / 2), theirs)


def test_both_leads_are_in_the_headline_where_they_disagree() -> None:
    leads, gains = headline(heart())[-2:]
    own, weighted = np.mean(OWN), np.average(OWN, weights=EXAMPLES)
    common, whole = np.mean(COMMON), np.average(COMMON, weights=EXAMPLES)
    assert re.findall(r"\d+\.\d\d", leads) == [
        f"{100 * value:.2f}" for value in (whole - np.mean(EVERYWHERE), own, common, weighted, whole)
    ]
    assert "16 to 104" in leads
    assert re.findall(r"\d+ of \d+|\d+ lose", gains) == ["1 of 4", "3 lose"]
    assert "56.00" in gains, "the worst site"


def test_where_small_sites_decide_the_weighted_lead_is_given() -> None:
    """Own models win at the two small sites and lose at the two large ones."""
    together, alone = [run("federated", (0.8, 0.8, 0.2, 0.7))], [run("local", (0.7, 0.7, 0.9, 0.8), EVERYWHERE)]
    leads, _ = both(together, alone, judged())
    assert re.findall("federating|each site's own model", leads) == [
        "federating", "each site's own model", "federating"
    ]  # fmt: skip


def test_one_lead_on_everybodys_and_own_examples_is_said_once() -> None:
    leads, gains = both([run("federated", OWN)], [run("local", COMMON, EVERYWHERE)], judged())
    assert (leads.count("federating"), "3 of 4" in gains, "1 lose" in gains) == (1, True, True)


@pytest.mark.parametrize(("own", "sure"), [((0.99, 0.99, 0.99, 0.99), True), (OWN, False)])
def test_a_lead_is_called_one_if_it_is_more_than_chance(own: Sequence[float], sure: bool) -> None:
    """Of 254 test examples in all, a hundred right ones more are no chance, and nine are."""
    together = [run("federated", COMMON if sure else OWN, seed=seed) for seed in (1, 2, 3)]
    better = own if sure else tuple(value + 0.03 for value in OWN)
    leads, _ = both(together, [run("local", better, EVERYWHERE, seed=seed) for seed in (1, 2, 3)], judged())
    assert ("each site's own model leads" in leads, "3 seeds" in leads) == (sure, not sure)


def test_the_headline_has_both_tests_where_they_disagree() -> None:
    """Next to what federating is worth on everybody's examples, not further down."""
    assert headline(heart(seeds=3))[2].startswith("On everybody's test examples federating")
    agreed = site_sentences([run("federated", OWN)], [run("local", COMMON, EVERYWHERE)], judged())
    assert [len(part) for part in agreed] == [0, 2]


def test_every_seed_has_its_number_of_gains() -> None:
    together = [run("federated", COMMON), run("federated", OWN, seed=2)]
    alone = [run("local", OWN, EVERYWHERE), run("local", COMMON, EVERYWHERE, seed=2)]
    _, gains = both(together, alone, judged())
    assert "1 with seed 1, 3 with seed 2" in gains


def test_models_that_diverged_and_unknown_sites_have_no_sentence() -> None:
    alone = [run("local", OWN, EVERYWHERE)]
    assert site_sentences([run("federated", (math.nan, 0.5, 0.5, 0.5))], alone, judged()) == ([], [])
    assert site_sentences([made_up_run("federated", sites=0)], alone, judged()) == ([], [])
    assert site_sentences([run("federated", COMMON, seed=7)], alone, judged()) == ([], [])


def test_the_table_has_a_row_for_each_mode_that_knows_its_sites() -> None:
    table = site_means_table(heart(seeds=2))
    assert table is not None
    head, (alone, together) = table
    assert (len(head), len(alone), len(together)) == (7, 7, 7)
    assert together[:2] == ("federated", "68.76 ± 0.00")
    assert together[-2:] == ("56.00 ± 0.00 (client-3)", "1 gain, 3 lose")
    assert site_means_table(made_up(runs=(made_up_run("federated", sites=0),))) is None
