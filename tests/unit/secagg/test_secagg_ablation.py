"""The model in proofs/maude and the table of proofs/ablation.py keep up with the checks of the code."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path

import pytest

from fedcore.secagg.checks import Check
from fedcore.secagg.transitions import ClientEvent, ServerEvent

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

SERVER_RULES = {
    ServerEvent.ADVERTISEMENT: "begin",
    ServerEvent.KEY_SHARES: "receive",
    ServerEvent.INPUT: "receive",
    ServerEvent.CONSISTENCY: "receive",
    ServerEvent.UNMASK_SHARES: "receive",
    ServerEvent.DROP: "upload",
    ServerEvent.CLOSE: "share upload sign unmask",
    ServerEvent.FALL_SHORT: "",
}
"""Likewise of the honest server: a stage that falls short is a state in which nothing more happens."""


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
    assert set(ablation.CHECKS) == {*map(str, Check), "exchange-in-ctx", "possession"}


def test_every_check_of_admission_has_a_row_or_a_reason(ablation):
    table = re.findall(
        r"^\| ([a-z][a-z-]+) +\|", (PROOFS.parent / "fedcore/federation/admission/checks.py").read_text(), re.M
    )
    apart = [check for names in ablation.ADMISSION_APART.values() for check in names.split()]
    assert sorted([*ablation.ADMISSION, *apart]) == sorted(set(table) - {"check"})


def test_every_reason_for_a_wrong_group_has_a_row_or_a_reason(ablation):
    calls = [
        node
        for node in ast.walk(ast.parse((PROOFS.parent / "fedcore/run/groups.py").read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "_wrong"
    ]
    assert sorted([*ablation.WRONG_GROUP, *ablation.WRONG_GROUP_APART]) == sorted(call.args[1].value for call in calls)


def test_a_row_is_a_flag_of_the_model(ablation):
    assert set(ablation.TABLE) == _flags()
    assert {row.behind for row in ablation.TABLE.values()} <= {"", *_flags()}


def test_every_row_names_a_world_and_a_promise_of_the_model(ablation):
    for row in ablation.TABLE.values():
        assert row.promise in ablation.WORLDS[row.world].promises
    for world, model in ablation.WORLDS.items():
        text = "".join((PROOFS / "maude" / f"{name}.maude").read_text() for name in model.files)
        assert f"start('{world}, F)" in text or f"proposals('{world})" in text
        assert set(model.promises) <= {
            name for line in re.findall(r"ops? (.+) : World -> Bool", text) for name in line.split()
        }
    assert {promise for model in ablation.WORLDS.values() for promise in model.promises} == set(ablation.PROMISES)


def test_what_a_server_alone_checks_is_taken_from_an_honest_one(ablation):
    made_by = re.findall(
        r"^\| ([a-z-]+) +\| ([a-z, ]+?) +\|", (PROOFS.parent / "fedcore/secagg/checks.py").read_text(), re.M
    )
    assert {ablation.CHECKS[check].world for check, who in made_by if who == "server"} == {"faults"}


def _rules(name):
    return set(re.findall(r"rl \[([a-z-]+)\]", (PROOFS / "maude" / f"{name}.maude").read_text()))


def test_every_step_of_a_client_has_a_rule():
    assert set(RULES) == set(ClientEvent)
    assert set(RULES.values()) == _rules("server") - {"next", "again", "deliver-again"}


def test_every_event_of_a_server_has_a_rule():
    assert set(SERVER_RULES) == set(ServerEvent)
    assert {rule for rules in SERVER_RULES.values() for rule in rules.split()} == _rules("faults") - {"cheat", "blame"}
