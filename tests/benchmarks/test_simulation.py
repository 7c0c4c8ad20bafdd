"""The arithmetic of the simulation benchmark, on rounds made by hand, and what it leaves out."""

import argparse

import pytest

from benchmarks.common import APPS
from benchmarks.simulation import Found, beside_pfl, fraction, rounds_table, small_cohort
from benchmarks.simulation_turns import Measured, Round, over
from fedcore.flower.app import FlowerApp
from fedcore.run.requirements import check_cohort_request
from fedcore.run.settings import JobSettings


def measured(*walls, first=9.0, trained=0.5, memory=3 << 20):
    rounds = [Round(wall=wall, processor=2 * wall, trained=trained, memory=memory + i) for i, wall in enumerate(walls)]
    return Measured(first=first, rounds=rounds)


def test_rounds_are_compared_turn_by_turn():
    # The machine was ten times slower in the second turn, for both.
    ours, theirs = measured(1.0, 10.0, 1.2), measured(2.0, 20.0, 2.0)
    assert over(ours, theirs) == pytest.approx(0.5)
    assert over(theirs, theirs) == 1


def test_the_share_of_training_counts_all_workers():
    one = measured(1.0, 2.0, 4.0)
    assert one.share(1) == pytest.approx(0.25)
    assert one.share(2) == pytest.approx(0.125)


def test_a_row_has_the_medians_and_the_most_memory():
    table = rounds_table(
        "x", {"a": measured(1.0, 3.0, 2.0), "b": measured(2.0, 6.0, 4.0)}, "b", more=("share", {"a": "1"})
    )
    assert table.rows[0] == ("a", "9.0", "2.000", "0.50", "4.00", "3", "1")
    assert table.rows[1][3] == "1.00"
    assert table.rows[1][-1] == ""


def test_a_round_asks_as_many_as_were_meant():
    for per_round, clients in ((10, 100), (100, 1_000), (100, 10_000), (8, 8)):
        assert int(clients * fraction(per_round, clients)) == per_round


def test_a_small_cohort_may_make_a_secure_sum():
    for per_round, clients in ((10, 100), (5, 50), (50, 1_000), (100, 10_000)):
        settings = JobSettings.from_mapping(small_cohort(per_round, clients), where="test")
        check_cohort_request(per_round, settings, clients, 2, message_type="train", own=True)


def test_without_pfl_its_part_is_left_out_by_name(tmp_path):
    for folder in (None, tmp_path):
        found = Found()
        beside_pfl(found, argparse.Namespace(pfl=folder, quick=True, turns=None))
        assert not found.figures
        assert "pfl-research is not installed" in found.notes[0]


def test_the_app_can_be_read():
    app = FlowerApp.load(APPS / "simulated")
    assert app.run_config["fraction-evaluate"] == 0.0
