"""Eligibility to train: the owner's rules against the clock, the power supply and the other processes.

The rules and their source are in `fedcore.federation.eligibility`. The server learns whether the client may train,
never why not.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, NoReturn, Self

import psutil

from fedcore.errors import EnvironmentFailure
from fedcore.federation.eligibility import EligibilityRules
from fedcore.system.concurrency import in_thread

CHECK_SECONDS: Final = 10.0
"""Seconds between two readings, and so the stretch over which the load of the machine is averaged."""


class NotEligible(EnvironmentFailure):
    """The owner's rules forbid training now; the message names the rule."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"not eligible: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The machine at one moment."""

    minute: int
    """After local midnight, 0 to 1439."""
    on_power: bool = True
    load: float = 0.0
    """What other processes use, as a share of all cores, 0 to 1."""


def why_not(rules: EligibilityRules, reading: Reading) -> str:
    """The first rule that forbids training, in words; empty if the machine may train."""
    if rules.train_hours and not any(reading.minute in hours for hours in rules.train_hours):
        return f"outside {', '.join(map(str, rules.train_hours))}"
    if rules.on_power_only and not reading.on_power:
        return "on battery"
    if rules.idle_only and reading.load > rules.idle_load:
        return f"other processes use more than {rules.idle_load:.0%} of the machine"
    return ""


@dataclass(slots=True)
class MachineMonitor:
    """Reads the real machine, as far as the rules need it.

    The load is measured since the reading before, without what this process and its children use. If a child has left
    the process tree since then, one reading is too high.
    """

    rules: EligibilityRules
    all_seconds: Callable[[], tuple[float, float]] = field(default_factory=lambda: processor_seconds)
    """Processor seconds of all processes, as `processor_seconds` reads them."""
    own_seconds: Callable[[], float] = field(default_factory=lambda: own_seconds)
    """Those of this process and its children."""
    _busy: float = field(default=0.0, init=False)
    _capacity: float = field(default=0.0, init=False)
    _own: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if self.rules.idle_only:
            self._load()

    def read(self) -> Reading:
        """Take a reading; the load takes some milliseconds, since it goes through all processes."""
        now = time.localtime()
        return Reading(
            minute=60 * now.tm_hour + now.tm_min,
            on_power=_on_power() if self.rules.on_power_only else True,
            load=self._load() if self.rules.idle_only else 0.0,
        )

    def _load(self) -> float:
        """The share of all cores that others used since the last call, in [0, 1]."""
        busy, capacity = self.all_seconds()
        own = self.own_seconds()
        others = (busy - self._busy) - max(own - self._own, 0.0)
        elapsed = capacity - self._capacity
        self._busy, self._capacity, self._own = busy, capacity, own
        return min(max(others / elapsed, 0.0), 1.0) if elapsed > 0 else 0.0


def _on_power() -> bool:
    """Whether the machine is plugged in, or has no battery; one that cannot tell counts as unplugged."""
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    return battery is None or bool(battery.power_plugged)


def processor_seconds() -> tuple[float, float]:
    """Seconds that all cores were busy, and seconds in total, since the machine started."""
    times = psutil.cpu_times()._asdict()
    # Linux counts the time of virtual machines in `user` already.
    capacity = sum(seconds for name, seconds in times.items() if name not in ("guest", "guest_nice"))
    return capacity - times["idle"] - times.get("iowait", 0.0), capacity


def own_seconds() -> float:
    """Processor seconds of this process and all below it, those that have ended included."""
    here = psutil.Process()
    total = 0.0
    for process in (here, *here.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it has ended since
            used = process.cpu_times()
            total += used.user + used.system + used.children_user + used.children_system
    return total


@dataclass(slots=True, kw_only=True)
class Eligibility:
    """Whether the client may train, by the last reading."""

    rules: EligibilityRules
    read: Callable[[], Reading]
    """Takes a reading; it may block."""
    seconds: float = CHECK_SECONDS
    """Between two readings."""
    clock: Callable[[], float] = time.monotonic
    """Monotonic seconds."""
    reason: str = field(default="", init=False)
    """The rule that forbids training; empty while the client may train."""
    _since: float = field(default=0.0, init=False)
    _lost: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    @classmethod
    def of(cls, rules: EligibilityRules) -> Self:
        """By the readings of this machine."""
        return cls(rules=rules, read=MachineMonitor(rules).read)

    @property
    def holds(self) -> bool:
        """Whether the client may train now."""
        return not self.reason

    async def update(self) -> str:
        """Take a reading; returns a line for the owner, empty if nothing has changed."""
        reason = why_not(self.rules, await in_thread(self.read))
        if reason == self.reason:
            return ""
        before, self.reason = self.reason, reason
        waited = timedelta(seconds=round(self.clock() - self._since))
        if not reason:
            self._lost.clear()
            return f"eligible again after {waited}"
        if before:
            return f"not eligible for {waited}, now: {reason}"
        self._since = self.clock()
        self._lost.set()
        return f"not eligible: {reason}"

    def check(self) -> None:
        """Raise NotEligible unless the client may train now."""
        if self.reason:
            raise NotEligible(self.reason)

    async def lost(self) -> NoReturn:
        """Raise NotEligible as soon as a reading says so."""
        await self._lost.wait()
        raise NotEligible(self.reason)
