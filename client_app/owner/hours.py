"""When the owner's rules let the machine train, from now on."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from fedcore.federation.eligibility import MINUTES_A_DAY, EligibilityRules

AHEAD: Final = timedelta(hours=24)


def windows(rules: EligibilityRules, now: datetime) -> list[tuple[datetime, datetime]]:
    """The stretches of the next 24 hours in which `train-hours` let the machine train, to the minute.

    now: the machine's local time. The other rules depend on what the machine does then, and nobody knows that yet.
    """
    begin = now.replace(second=0, microsecond=0)
    found: list[tuple[datetime, datetime]] = []
    for minutes in range(MINUTES_A_DAY):
        moment = begin + timedelta(minutes=minutes)
        if rules.train_hours and not any(60 * moment.hour + moment.minute in hours for hours in rules.train_hours):
            continue
        if found and found[-1][1] == moment:
            found[-1] = found[-1][0], moment + timedelta(minutes=1)
        else:
            found.append((moment, moment + timedelta(minutes=1)))
    return found


def rules_text(rules: EligibilityRules) -> str:
    """The rules in words."""
    said = [f"between {' and '.join(map(str, rules.train_hours))}"] if rules.train_hours else []
    said += ["on mains power only"] if rules.on_power_only else []
    said += [f"only while other processes use at most {rules.idle_load:.0%} of the machine"] if rules.idle_only else []
    return ", ".join(said) or "at any time"
