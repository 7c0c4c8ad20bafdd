"""Runs many schedules of one state machine from one seed, and hands back what they did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from fedcore.secagg import ServerRound

from .faults import Fault
from .honest_machine import HonestServer
from .hostile import Broken, Tally
from .hostile_machine import LyingServer

BUDGET = 50
"""Schedules of one search for a planted fault."""
ATTEMPTS = 30
STEPS = 14


def run_schedules(
    machine: type[RuleBasedStateMachine],
    *,
    schedules: int,
    start: int,
    shrink: bool = True,
    tally: Tally | None = None,
    **attributes: Any,
) -> Tally:
    """The tally of that many schedules; Broken, with the schedule among its notes, for the first that fails.

    `start` is the seed: the same one gives the same schedules, as long as hypothesis and what is imported stay the
    same. They are counted on top of what is in `tally`. `attributes` replace those of the machine's class.
    """
    tally = tally or Tally()
    seeded = seed(start)(type(machine.__name__, (machine,), {"tally": tally, **attributes}))
    run_state_machine_as_test(
        seeded,
        settings=settings(
            max_examples=schedules,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            print_blob=False,
            report_multiple_bugs=False,
            phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    return tally


def run_until(
    seen: Callable[[Tally], bool], machine: type[RuleBasedStateMachine], *, schedules: int, start: int
) -> Tally:
    """The same, and BUDGET schedules more at a time until the tally has `seen` it all; no more than ATTEMPTS times.

    Some things are so rare that one seed in a hundred does not lead to all of them.
    """
    tally = run_schedules(machine, schedules=schedules, start=start)
    for attempt in range(1, ATTEMPTS + 1):
        if seen(tally):
            break
        run_schedules(machine, schedules=BUDGET, start=start + attempt, tally=tally)
    return tally


def verdict_on(fault: Fault, *, start: int, strict: bool = True) -> str:
    """What the schedules say of a planted fault: the verdict of the first that fails, or "" where none does.

    Most searches take a dozen schedules, and some would take hundreds; which ones changes with hypothesis and with what
    else is imported. So a search ends after BUDGET schedules, for the fault that hides best about half of them in vain,
    and the next begins under the next seed: ATTEMPTS of them are all in vain with a chance below 1e-9.
    """
    for attempt in range(ATTEMPTS):
        try:
            with fault.planted():
                run_schedules(
                    LyingServer,
                    schedules=BUDGET,
                    start=start + attempt,
                    shrink=False,
                    session=fault.session,
                    settings_of_rounds=fault.settings,
                    strict=strict,
                )
        except Broken as broken:
            return broken.verdict
    return ""


def verdict_on_server(server_class: type[ServerRound], *, start: int) -> str:
    """The same for a server that lacks a check, among clients that lie."""
    for attempt in range(ATTEMPTS):
        try:
            run_schedules(
                HonestServer, schedules=BUDGET, start=start + attempt, shrink=False, server_class=server_class
            )
        except Broken as broken:
            return broken.verdict
    return ""
