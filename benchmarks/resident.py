"""Resident memory of other processes, from Linux's /proc (proc(5))."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from fedcore.errors import EnvironmentFailure

SAMPLE_SECONDS = 0.05
_RESET_PEAK = "5"


def resident_bytes(pid: int) -> int:
    """What the process holds in memory now, mapped files included."""
    return _status_bytes(pid, "VmRSS")


def peak_resident_bytes(pid: int) -> int:
    """The most that it has held since its start, or since `reset_peak`."""
    return _status_bytes(pid, "VmHWM")


def reset_peak(pid: int) -> None:
    """Let the peak begin again at what is held now; raises EnvironmentFailure if the kernel does not allow it."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK, encoding="ascii")
    except OSError as error:
        raise EnvironmentFailure(f"the peak memory of process {pid} cannot be reset: {error.strerror}") from error


class Sampling(ABC):
    """Looks again and again, in a thread, as long as its block lasts. seconds: between two looks."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(self._seconds):
            self.look()

    @abstractmethod
    def look(self) -> None:
        """Take one sample."""


class ChildrenPeak(Sampling):
    """The highest peak among the processes below one, in a sandbox or not, which come and go while this samples.

    `peak` is in bytes. A child's peak is kept by the kernel, so only what grows in the last sampling interval of its
    life is missed.
    """

    def __init__(self, parent: int) -> None:
        super().__init__(SAMPLE_SECONDS)
        self.peak = 0
        self._parent = psutil.Process(parent)

    def look(self) -> None:
        with contextlib.suppress(psutil.Error):
            for child in self._parent.children(recursive=True):
                with contextlib.suppress(EnvironmentFailure):
                    self.peak = max(self.peak, peak_resident_bytes(child.pid))


def _status_bytes(pid: int, name: str) -> int:
    """A line such as `VmRSS:   1234 kB`; raises EnvironmentFailure for a process that is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError as error:
        raise EnvironmentFailure(f"process {pid} cannot be looked at: {error.strerror}") from error
    for line in lines:
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise EnvironmentFailure(f"process {pid} has no {name}: it has ended, or this is not Linux")
