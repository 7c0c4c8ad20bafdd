"""A server that tells any lie at any step, and an honest one among clients that do, over generated schedules.

What the schedules check is in `support.hostile` (the promises of a session), `support.adversary` (what the server can
work out) and `support.honest_machine`. `benchmarks/hostile.py` runs thousands of them.
"""

from __future__ import annotations

import pytest
from support.faults import FAULTS, SERVER_FAULTS
from support.honest_machine import HonestServer
from support.hostile_machine import LyingServer
from support.lies import LIES
from support.schedules import run_until, verdict_on, verdict_on_server

# A search may have to begin several times, and a machine may be busy.
SEED = 7
COSTLY = [name for name, fault in FAULTS.items() if fault.costs_an_update]


def test_no_lie_costs_an_update_or_leaves_a_trace():
    refused = {"share-unsealing", "inconsistent-survivors", "holders-below-threshold"}
    tally = run_until(
        lambda tally: len(set(LIES) - set(tally.lies)) <= 2 and refused <= set(tally.refusals),
        LyingServer, schedules=120, start=SEED,
    )  # fmt: skip
    assert tally.schedules >= 120
    assert len(set(LIES) - set(tally.lies)) <= 2
    assert tally.outcomes["honest completions"] > tally.rounds / 10
    assert refused <= set(tally.refusals)


def test_an_honest_server_ends_with_the_exact_sum_or_a_named_failure():
    named = {"CohortTooSmall", "UnmaskFailed", "ConflictingMessage", "dropped-client", "late-input"}
    tally = run_until(lambda tally: named <= set(tally.refusals), HonestServer, schedules=120, start=SEED)
    assert tally.outcomes["exact sum"] > 20
    assert tally.outcomes["named failure"] > 5
    assert named <= set(tally.refusals)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name):
    assert verdict_on(FAULTS[name], start=SEED) in FAULTS[name].verdicts


@pytest.mark.parametrize("name", COSTLY)
def test_the_solver_alone_finds_what_a_fault_gives_away(name):
    assert verdict_on(FAULTS[name], start=SEED, strict=False) == "recovered"


@pytest.mark.parametrize("name", SERVER_FAULTS)
def test_a_fault_of_the_server_is_found(name):
    faulty, verdicts = SERVER_FAULTS[name]
    assert verdict_on_server(faulty, start=SEED) in verdicts
