"""Seconds of the processor, as the operating system counts them for processes and for their children."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

import psutil


def own_seconds() -> float:
    """Of this process so far, user and system, with its children that have ended."""
    return sum(os.times()[:4])


def seconds_of(pids: Iterable[int]) -> float:
    """Of these processes so far and of all below them, with those of their children that have ended.

    What has ended and was no child of one that lives is not counted.
    """
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            for one in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    total += sum(one.cpu_times()[:4])
    return total
