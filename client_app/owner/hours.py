"""Training hours of the next day, by the owner's rules."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from fedcore.federation.eligibility import MINUTES_A_DAY, EligibilityRules

HORIZON: Final = timedelta(hours=24)


def windows(rules: EligibilityRules, now: datetime) -> list[tuple[datetime, datetime]]:
    """The parts of the next 24 hours in which `train-hours` allow training, to the minute.

    The other rules depend on what the machine will be doing, so they are left out.

    Args:
        rules: of the owner.
        now: the machine's local time.
    """
    begin = now.replace(second=0, microsecond=0)
    stretches: list[tuple[datetime, datetime]] = []
    for minutes in range(MINUTES_A_DAY):
        moment = begin + timedelta(minutes=minutes)
        if rules.train_hours and not any(60 * moment.hour + moment.minute in hours for hours in rules.train_hours):
            continue
        if stretches and stretches[-1][1] == moment:
            stretches[-1] = stretches[-1][0], moment + timedelta(minutes=1)
        else:
            stretches.append((moment, moment + timedelta(minutes=1)))
    return stretches


def rules_text(rules: EligibilityRules) -> str:
    """The rules in words."""
    parts = [f"between {' and '.join(map(str, rules.train_hours))}"] if rules.train_hours else []
    parts += ["on mains power only"] if rules.on_power_only else []
    parts += [f"only while other processes use at most {rules.idle_load:.0%} of the machine"] if rules.idle_only else []
    return ", ".join(parts) or "at any time"
