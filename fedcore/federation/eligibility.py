"""The eligibility rules of `policy.toml`: when a client's owner lets the machine train.

McMahan and Ramage, "Federated Learning: Collaborative Machine Learning without Centralized Training Data" (2017): a
device trains only when it is idle and plugged in, so that nobody who uses it notices.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

from fedcore.errors import KitError

MINUTES_A_DAY: Final = 24 * 60
_HOURS = re.compile(r"(\d\d):(\d\d)-(\d\d):(\d\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """A stretch of every day, in minutes after local midnight: `start` belongs to it, `end` does not.

    It spans midnight where `end` lies before `start`.
    """

    start: int
    end: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "22:00-06:00"; "24:00" is the end of a day. Raises KitError."""
        match = _HOURS.fullmatch(text)
        hour, minute, end_hour, end_minute = map(int, match.groups()) if match else (99, 99, 99, 99)
        start, end = 60 * hour + minute, 60 * end_hour + end_minute
        if max(minute, end_minute) >= 60 or start >= MINUTES_A_DAY or end > MINUTES_A_DAY:
            raise KitError(f'train-hours must look like "22:00-06:00", not {text!r}', check="hours")
        if start == end:
            raise KitError(f'train-hours {text!r} hold no minute; "00:00-24:00" is the whole day', check="empty-hours")
        return cls(start=start, end=end)

    def __contains__(self, minute: int) -> bool:
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end

    def __str__(self) -> str:
        return f"{self.start // 60:02}:{self.start % 60:02}-{self.end // 60:02}:{self.end % 60:02}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EligibilityRules:
    """What must hold for this client to take part in a round; without any rule it always may.

    train_hours: when it may, by the machine's local time; empty for the whole day.
    on_power_only: not on battery. A machine without a battery is on power.
    idle_only: only while other processes use little of the processor.
    idle_load: how much of it they may use, as a share of all cores, greater than 0 and at most 1.
    """

    train_hours: tuple[Hours, ...] = ()
    on_power_only: bool = False
    idle_only: bool = False
    idle_load: float = 0.25

    def __post_init__(self) -> None:
        if not 0 < self.idle_load <= 1:
            raise KitError("idle-load must be greater than 0 and at most 1, the share of all cores")
