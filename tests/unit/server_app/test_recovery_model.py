"""The model of recovery in proofs/spin keeps up with the stages, transitions and transactions of the code."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from pathlib import Path

import pytest

from server_app.exchanges.secure import SecureExchange
from server_app.exchanges.stages import PARTICIPANT_TRANSITIONS, ParticipantState, Phase
from server_app.storage.exchange_tables import ExchangeTables
from server_app.storage.leases import LeaseTables
from server_app.storage.run_tables import JournalTables, RunTables

PROOFS = Path(__file__).parents[3] / "proofs"
MODEL = (PROOFS / "spin" / "recovery.pml").read_text()

NO_ACTION = {
    "give_lease": "a server that ceases leaves a lease that is free",
    "give_all": "likewise",
    "add_run": "the run is there before anything of the model happens",
    "update_run": "figures of a run, which its end writes again",
    "resume_run": "of a run that has ended, by its operator",
    "drop_steps_from": "likewise",
    "interrupt_runs": "of runs that no server takes up",
    "forget_run": "of a run that has ended",
    "count_death": "a number that only ends a run earlier",
    "add_events": "what a person reads; events have numbers and are never written twice",
}
"""Transactions without an action of the model, and why."""


@pytest.fixture(scope="module")
def recovery():
    spec = importlib.util.spec_from_file_location("recovery", PROOFS / "recovery.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "recovery", module)
        spec.loader.exec_module(module)
        yield module


def _numbers(first, last):
    """The names that the model defines from one to another, in the order of their numbers."""
    defines = re.findall(r"^#define ([A-Z]+) (\d+)$", MODEL, re.MULTILINE)
    names = [name for name, _ in defines]
    block = defines[names.index(first) : names.index(last) + 1]
    return [name.lower() for name, _ in sorted(block, key=lambda row: int(row[1]))]


def _actions():
    return set(re.findall(r'printf\("@ %d ([a-z_]+)', MODEL))


def test_stages_are_those_of_an_exchange():
    assert _numbers("ADVERTISE", "UNMASK") == list(SecureExchange.stage_names)
    assert {Phase.DONE, Phase.FAILED} == set(_numbers("DONE", "FAILED"))


def test_states_of_a_client_are_those_of_the_code():
    assert set(_numbers("ASKED", "LEFT")) == set(ParticipantState)


def test_transitions_of_a_client_are_those_of_the_code():
    rows = re.findall(r":: CHANGE\(r, c, ([A-Z]+), ([A-Z]+), ([A-Z]+)\)", MODEL)
    table = {(source.name, change.name, target.name) for (source, change), target in PARTICIPANT_TRANSITIONS.items()}
    assert {(source, change, target) for change, source, target in rows} == table
    assert len(rows) == len(table)


def test_every_transaction_is_an_action_of_the_model_or_excused():
    writes = {
        name
        for tables in (LeaseTables, ExchangeTables, JournalTables, RunTables)
        for name, method in vars(tables).items()
        if inspect.iscoroutinefunction(method)
        and not name.startswith("_")
        and re.search(r"database\.(write|execute)\(|self\.(_swap|_extend|end_run)\(", inspect.getsource(method))
    }
    assert writes == (writes & _actions()) | NO_ACTION.keys()
    assert not NO_ACTION.keys() & _actions()
    assert len(writes & _actions()) >= 11


def test_every_fault_of_the_model_has_a_row(recovery):
    faults = set(re.findall(r"FAULT_[A-Z_]*[A-Z]", MODEL))
    planted = {define for name in recovery.FAULTS for define in recovery.defines_of(name) if "FAULT_" in define}
    assert planted == faults


def test_no_row_names_a_promise_that_the_model_does_not_assert(recovery):
    asserted = re.sub(r"\s+", "", " ".join(re.findall(r"assert\((.*)\)", MODEL)))
    assert all(fault.broken in asserted for fault in recovery.FAULTS.values())
