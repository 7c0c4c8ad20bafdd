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


def spent(server: int) -> dict[tuple[str, int], float]:
    """Processor seconds so far of each process: the server, its ServerApps, this process' other children, their ranks.

    By what it is and its number; a process that has ended is missing.
    """
    seconds: dict[tuple[str, int], float] = {}
    for child in psutil.Process().children():
        own, under = (SERVER, APP) if child.pid == server else (AGENTS, RANKS)
        with contextlib.suppress(psutil.NoSuchProcess):
            seconds[own, child.pid] = _seconds(child)
            for process in child.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    seconds[under, process.pid] = _seconds(process)
    return seconds


def between(
    before: Mapping[tuple[str, int], float], after: Mapping[tuple[str, int], float], rounds: int
) -> dict[str, float]:
    """Processor seconds of one round of `rounds`, by what the processes are that lived through all of them."""
    seconds = dict.fromkeys(ROLES, 0.0)
    for process in before.keys() & after.keys():
        seconds[process[0]] += (after[process] - before[process]) / rounds
    return seconds


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
