"""The app itself, unmodified, on a real server and real clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fedcore.compare.federated import run_federated
from fedcore.compare.federation import Federation
from fedcore.compare.modes.base import InReport, Mode
from fedcore.compare.results import RunResult
from fedcore.compare.run import ModeRun
from fedcore.config import JobSettings
from fedcore.errors import ConfigurationError
from fedcore.events import EventSink

# What the mode, or another option of the command, decides.
_DECIDED = {"aggregation", "min-clients"}
TOGETHER = "dp-epsilon or dp-noise-multiplier and the mode {} go together: name both or neither"


@dataclass(frozen=True, kw_only=True)
class Federated(Mode):
    """protection: "private" is secure aggregation with differential privacy."""

    any_app: ClassVar[bool] = True

    protection: Literal["secure", "plain", "private"] = "secure"

    @property
    def private(self) -> bool:
        return self.protection == "private"

    @property
    def in_report(self) -> InReport:
        return InReport(protection=self.protection)

    @property
    def plain(self) -> bool:
        """Whether the server reads every update."""
        return self.protection == "plain"

    def setting_names(self) -> frozenset[str]:
        names = JobSettings().to_mapping().keys() - _DECIDED
        return frozenset(name for name in names if self.private or not name.startswith("dp-"))

    def settings(self, settings: Mapping[str, Any], *, sites: int) -> dict[str, Any]:
        """With an aggregation of its own; differential privacy is for the private mode alone."""
        decided: dict[str, Any] = {"min-clients": sites, "aggregation": "plain" if self.plain else "secure"}
        if not self.private:
            decided |= {"dp-epsilon": 0.0, "dp-noise-multiplier": 0.0}
        checked = JobSettings.from_mapping({**settings, **decided})
        if checked.private != self.private:
            raise ConfigurationError(TOGETHER.format(self.name))
        return checked.to_mapping()

    def warm_group(self, run: ModeRun) -> str:
        """Clients agree once to what the server may read, so that plain runs need a federation of their own."""
        return f"federation-{'plain' if self.plain else 'secure'}"

    def carry_out(self, run: ModeRun, emit: EventSink, warm: Federation) -> RunResult:
        return run_federated(run, emit, warm)
