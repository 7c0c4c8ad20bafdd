"""The model in proofs/maude and the table of proofs/ablation.py keep up with the checks of the code."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from fedcore.secagg.checks import Check
from fedcore.secagg.transitions import ClientEvent

PROOFS = Path(__file__).parents[3] / "proofs"

RULES = {
    ClientEvent.ADVERTISE: "propose",
    ClientEvent.SHARE_KEYS: "list",
    ClientEvent.RECEIVE_SHARES: "deliver",
    ClientEvent.COMPLAIN: "accuse",
    ClientEvent.MASK: "deliver",
    ClientEvent.SIGN_SURVIVORS: "survive",
    ClientEvent.UNMASK: "over",
    ClientEvent.ABANDON: "leave-out",
}
"""The rule of the model in which a client takes each step."""


@pytest.fixture(scope="module")
def ablation():
    spec = importlib.util.spec_from_file_location("ablation", PROOFS / "ablation.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "ablation", module)
        spec.loader.exec_module(module)
        yield module


def _flags():
    """Every name of which the model asks whether it is off."""
    text = "".join(path.read_text() for path in (PROOFS / "maude").glob("*.maude"))
    return set(re.findall(r"'([a-z-]+)(?:, F,| in F)", text))


def test_every_check_has_a_row(ablation):
    assert set(ablation.TABLE) == {str(check) for check in Check}


def test_a_row_that_is_searched_is_a_flag_of_the_model(ablation):
    searched = {check for check, row in ablation.TABLE.items() if row.world}
    assert searched == _flags()
    assert _flags() <= {str(check) for check in Check}


def test_every_row_names_a_world_and_a_promise_of_the_model(ablation):
    worlds = (PROOFS / "maude" / "worlds.maude").read_text()
    for row in ablation.TABLE.values():
        assert not row.world or (row.world in ablation.WORLDS and f"proposals('{row.world})" in worlds)
        assert isinstance(row, ablation.NoAttack) or row.promise in ablation.PROMISES


def test_only_the_servers_checks_are_excused_as_such(ablation):
    made_by = re.findall(
        r"^\| ([a-z-]+) +\| ([a-z, ]+?) +\|", (PROOFS.parent / "fedcore/secagg/checks.py").read_text(), re.M
    )
    excused = {check for check, row in ablation.TABLE.items() if getattr(row, "reason", "") == ablation.SERVER}
    assert excused == {check for check, who in made_by if who == "server"}


def test_every_step_of_a_client_has_a_rule():
    assert set(RULES) == set(ClientEvent)
    rules = set(re.findall(r"rl \[([a-z-]+)\]", (PROOFS / "maude" / "server.maude").read_text()))
    assert set(RULES.values()) == rules - {"next", "again", "deliver-again"}
