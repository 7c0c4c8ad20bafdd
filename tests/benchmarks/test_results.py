"""How results are set beside published ones."""

import argparse
import math

import pytest

from benchmarks.fashion_mnist import FULL, PLAIN, QUICK, SECURE, SHORT, Length, Outcome, length_of
from benchmarks.fashion_mnist import report as fashion_report
from benchmarks.heart_disease import FEDAVG, POOLED, PUBLISHED, Cell, Spread, compare
from benchmarks.heart_disease import report as heart_report
from fedcore.errors import ConfigurationError


def cell(ours, published, patients=100, seeds=5):
    return Cell(
        method=FEDAVG,
        place="cleveland",
        patients=patients,
        seeds=seeds,
        ours=Spread(mean=ours[0], deviation=ours[1]),
        published=Spread(mean=published[0], deviation=published[1]),
    )


def test_a_difference_is_explained_by_two_standard_errors_of_the_means():
    one = cell((74.0, 3.0), (70.0, 4.0))
    assert one.difference == 4.0
    assert one.allowed == pytest.approx(2 * math.sqrt((9 + 16) / 5) + 0.05)
    assert one.explained
    assert not cell((74.6, 3.0), (70.0, 4.0)).explained
    assert not cell((65.4, 3.0), (70.0, 4.0)).explained
    assert cell((74.6, 3.0), (70.0, 4.0), seeds=2).explained


def test_without_a_spread_one_patient_is_all_that_is_allowed():
    assert cell((76.0, 0.0), (75.0, 0.0)).explained
    assert not cell((76.1, 0.0), (75.0, 0.0)).explained


def test_the_published_means_of_the_four_are_those_of_the_table():
    for method, mean in ((FEDAVG, 68.5), (POOLED, 73.5)):
        hospitals = [spread.mean for place, spread in PUBLISHED[method].items() if place != "pooled test"]
        assert sum(hospitals) / 4 == pytest.approx(mean, abs=0.051)


def test_the_figure_is_that_of_the_worst_cell():
    sizes = dict.fromkeys(PUBLISHED[FEDAVG], 100)
    exact = {place: spread.mean for place, spread in PUBLISHED[FEDAVG].items()}
    # One place off by 3 points; no spread of our own.
    scores = {FEDAVG: [{**exact, "va": exact["va"] + 3}] * 2}
    made = heart_report({FEDAVG: compare(FEDAVG, scores[FEDAVG], sizes)}, scores, (42, 43))
    assert made.figures[0].name == "fedavg_difference_over_spread"
    assert made.figures[0].value == pytest.approx(3 / (2 * 4.5 / math.sqrt(5) + 0.05))
    labels = [row[0] for row in made.tables[0].rows]
    assert labels == ["secure FedAvg, here", "FedAvg, published"]


def test_a_single_run_is_taken_to_have_the_published_spread():
    sizes = dict.fromkeys(PUBLISHED[FEDAVG], 1000)
    cells = {made.place: made for made in compare(FEDAVG, [dict.fromkeys(sizes, 70.0)], sizes)}
    assert cells["va"].allowed == pytest.approx(2 * 4.5 * math.sqrt(1 + 1 / 5) + 0.05)


def outcome(*accuracies):
    return Outcome(accuracies=accuracies, seconds=1.0, bytes_up=2.0)


def test_secure_and_plain_are_compared_after_the_last_round():
    outcomes = {("iid", SECURE): outcome(70.0, 80.0, 79.5), ("iid", PLAIN): outcome(60.0, 80.4)}
    made = fashion_report(outcomes, ("iid",), Length(rounds=2, local_epochs=1))
    assert made.figures[0].name == "secure_minus_plain_over_spread_iid"
    assert made.figures[0].value == pytest.approx(0.9 / (2 * 0.45))
    assert made.tables[0].rows[0][1:6] == ("79.50", "80.40", "-0.90", "80.00", "80.40")


def lengths(**given):
    return argparse.Namespace(**{"quick": False, "full": False, "rounds": None, "local_epochs": None, **given})


def test_lengths():
    assert length_of(lengths()) == SHORT
    assert length_of(lengths(quick=True)) == QUICK
    assert length_of(lengths(full=True, rounds=3)) == Length(rounds=3, local_epochs=FULL.local_epochs)
    with pytest.raises(ConfigurationError, match=r"--quick.*--full"):
        length_of(lengths(quick=True, full=True))
    with pytest.raises(ConfigurationError, match=r"--rounds.*--local-epochs"):
        length_of(lengths(rounds=-1))
