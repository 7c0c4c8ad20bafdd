"""Times that can be divided by one another on a machine that has other things to do."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

_Name = TypeVar("_Name", bound=Hashable)


def shortest(
    jobs: Mapping[_Name, Callable[[], object]], *, seconds: float, repeats: int = 5, clock: Callable[[], float]
) -> dict[_Name, float]:
    """The shortest time of each job, in seconds.

    All jobs run in turn, again and again, until `seconds` have passed and each has run `repeats` times; the order
    turns round every time. So all of them meet the same states of the machine, and the shortest time is that of the
    run that nothing disturbed. The first turn, which touches memory for the first time, does not count.
    """
    for job in jobs.values():
        job()
    best = dict.fromkeys(jobs, float("inf"))
    order = list(jobs)
    begin, turns = clock(), 0
    while turns < repeats or clock() - begin < seconds:
        for name in order:
            start = clock()
            jobs[name]()
            best[name] = min(best[name], clock() - start)
        order.reverse()
        turns += 1
    return best


def add_seconds(options: argparse.ArgumentParser) -> None:
    """The option `--seconds`."""
    options.add_argument(
        "--seconds",
        type=float,
        help="how long all timed jobs take turns (default 60, quick 12); more on a busy machine",
    )


def seconds_of(arguments: argparse.Namespace) -> float:
    """How long to measure."""
    if arguments.seconds is not None:
        return float(arguments.seconds)
    return 12.0 if arguments.quick else 60.0


clock = time.perf_counter
"""The clock that benchmarks pass."""
