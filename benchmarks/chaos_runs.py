"""The kinds of run that the kill harness disturbs: how their settings and those of their strategies differ."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.common import APPS
from fedcore.federation import Policy
from fedcore.flower.app import AppBundle
from fedcore.wire.operator import RunIn

CLIENTS: Final = 4
ROUNDS: Final = 4
APP: Final = APPS / "chaos"
SETTINGS: Final = {
    "min-clients": CLIENTS, "join-seconds": 60.0, "train-seconds": 120.0, "step-seconds": 120.0,
    "liveness-seconds": 60.0, "w-max": 1,
}  # fmt: skip
STRATEGIES: Final = ("fedavg", "fedadam", "fedavgm", "fedadagrad", "fedyogi")


@dataclass(frozen=True, slots=True)
class RunKind:
    """How a kind of run differs from others.

    settings: of the run, in addition to `SETTINGS`.
    same_bits: whether two of its runs end with the same bits. Groups are drawn, who is in a buffer is a race, and the
        strategy adds plain replies up in the order of the nodes that it drew.
    """

    settings: Mapping[str, Any]
    same_bits: bool = True


RUNS: Final[Mapping[str, RunKind]] = {
    "secure": RunKind({}),
    "groups": RunKind({"groups": 2, "min-groups": 2}, same_bits=False),
    "buffered": RunKind({"asynchrony": "buffered", "buffer-size": 3, "staleness": "constant"}, same_bits=False),
    "plain": RunKind({"aggregation": "plain"}, same_bits=False),
}
"""By name. In a buffered run an update counts the same however old it is, so that its digit is a whole one."""


def policy() -> Policy:
    """That of all clients: every kind of run is allowed, and groups may be as small as two."""
    return Policy.own(
        CLIENTS, min_cohort=2, min_threshold=2, allow_plain=True, max_releases=100_000, max_exchanges_per_day=1_000_000
    )


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run. kind: a name in `RUNS`. settings: in place of `SETTINGS`."""

    kind: str
    strategy: str
    rounds: int = ROUNDS
    elements: int = 64
    settings: Mapping[str, Any] | None = None

    @classmethod
    def drawn(cls, number: int, kinds: tuple[str, ...], **more: Any) -> RunPlan:
        """The plan of a federation's run number `number`, from 0 on: the kinds take turns, the strategies are drawn."""
        return cls(kinds[number % len(kinds)], random.choice(STRATEGIES), **more)

    def body(self, app: Path = APP) -> RunIn:
        """What the operator sends."""
        bundle = AppBundle.from_folder(app)
        config = {
            "strategy": self.strategy, "num-server-rounds": self.rounds, "min-nodes": CLIENTS,
            "elements": self.elements,
        }  # fmt: skip
        settings = {**SETTINGS, **RUNS[self.kind].settings, **(self.settings or {})}
        return RunIn(app_sha256=bundle.sha256, files=dict(bundle.files), run_config=config, settings=settings)
