"""Times that can be divided by one another on a machine that has other things to do."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias, TypeVar

from benchmarks.common import sized

Times: TypeAlias = tuple[list[float], list[float]]
"""Seconds of the turns of two loops."""

_Name = TypeVar("_Name", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to measure. seconds: in all, at least. pause: seconds of rest before each job. repeats: at least."""

    seconds: float
    pause: float = 0.0
    repeats: int = 5


def shortest(
    jobs: Mapping[_Name, Callable[[], object]],
    patience: Patience,
    *,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], object] = time.sleep,
) -> dict[_Name, float]:
    """The shortest time of each job, in seconds.

    All jobs run in turn, again and again, as long as `patience` has it; the order turns round every time. So all of
    them meet the same states of the machine, and the shortest time is that of the run that nothing disturbed. The
    first turn, which touches memory for the first time, does not count.
    """
    for job in jobs.values():
        job()
    best = dict.fromkeys(jobs, float("inf"))
    order = list(jobs)
    begin, turns = clock(), 0
    while turns < patience.repeats or clock() - begin < patience.seconds:
        for name in order:
            sleep(patience.pause)
            start = clock()
            jobs[name]()
            best[name] = min(best[name], clock() - start)
        order.reverse()
        turns += 1
    return best


def add_patience(options: argparse.ArgumentParser) -> None:
    """The options `--seconds` and `--pause`."""
    options.add_argument("--seconds", type=float, help="how long all timed jobs take turns (default 60, quick 12)")
    options.add_argument(
        "--pause", type=float, default=0.0, help="seconds of rest before each job, on a machine that others work on"
    )


def patience_of(arguments: argparse.Namespace) -> Patience:
    """What the options say."""
    default = sized(arguments, smallest=0.0, quick=12.0, whole=60.0)
    seconds = default if arguments.seconds is None else arguments.seconds
    return Patience(seconds=seconds, pause=arguments.pause, repeats=1 if arguments.smallest else 5)


def take_turns(
    loops: tuple[Callable[[], None], Callable[[], None]],
    turns: int,
    seconds_of: Callable[[Callable[[], None]], float],
) -> Times:
    """Seconds of each turn of two loops, of which neither always follows the other; a first turn warms both up."""
    times: Times = ([], [])
    for turn in range(-1, turns):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            seconds = seconds_of(loops[which])
            if turn >= 0:
                times[which].append(seconds)
    return times


def median_ratio(times: Times) -> float:
    """The median over the turns of the second loop's speed over that of the first."""
    return median(first / second for first, second in zip(*times, strict=True))
