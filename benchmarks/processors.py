"""Processor seconds of a federation's processes, by what they are: they say more than the clock on a busy machine."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Final

import psutil

SERVER: Final = "server"
APP: Final = "ServerApp"
AGENTS: Final = "agents"
RANKS: Final = "ranks"
ROLES: Final = (SERVER, APP, AGENTS, RANKS)


def spent(server: int) -> dict[str, float]:
    """Processor seconds so far of the server process, its ServerApp, and this process' other children, the agents.

    Of processes that have ended nothing is counted.
    """
    seconds = dict.fromkeys(ROLES, 0.0)
    for child in psutil.Process().children():
        own, under = (SERVER, APP) if child.pid == server else (AGENTS, RANKS)
        with contextlib.suppress(psutil.NoSuchProcess):
            below = child.children(recursive=True)
            seconds[own] += _seconds(child)
            for process in below:
                with contextlib.suppress(psutil.NoSuchProcess):
                    seconds[under] += _seconds(process)
    return seconds


def between(before: Mapping[str, float], after: Mapping[str, float], rounds: int) -> dict[str, float]:
    """Processor seconds of one round of `rounds`."""
    return {role: (after[role] - before[role]) / rounds for role in ROLES}


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
