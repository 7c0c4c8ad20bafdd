"""A client whose machine runs on battery as long as a file says so.

python client_on_battery.py FILE --kit DIR --app DIR

Everything but the reading is `fedcore client`: the rules come from the kit's policy.toml.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import client_app.startup
from client_app.exchange.eligibility import Eligibility, Reading
from fedcore.cli.main import main
from fedcore.federation.eligibility import EligibilityRules

UNPLUGGED: Final = "unplugged"


class OnBattery(Eligibility):
    """Reads the file instead of the machine, and often."""

    file: Path

    @classmethod
    def of(cls, rules: EligibilityRules) -> Eligibility:
        def read() -> Reading:
            return Reading(minute=0, on_power=cls.file.read_text(encoding="utf-8") != UNPLUGGED)

        return Eligibility(rules=rules, read=read, seconds=0.2)


if __name__ == "__main__":
    OnBattery.file, sys.argv[1] = Path(sys.argv[1]), "client"
    client_app.startup.Eligibility = OnBattery  # type: ignore[misc]
    main()
