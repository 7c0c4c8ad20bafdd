"""Which simulated clients drop out of an exchange, and before which step."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fedcore.simulation.memory_round import STEPS


class Fates(Protocol):
    """Decides about one exchange after the other, repeated ones too."""

    def doomed(self, cohort: Sequence[int]) -> dict[int, str]:
        """Of a secure exchange: client id -> the step, of `rounds.STEPS`, before which it disappears."""
        ...

    def lost(self, cohort: Sequence[int]) -> Collection[int]:
        """Who gives no reply in a plain exchange."""
        ...


@dataclass(slots=True)
class RandomDrops:
    """Each client drops out with probability `drop`, at a step drawn at random; to be repeated by its seed."""

    drop: float
    seed: int
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)  # noqa: S311 - which client drops is no secret

    def doomed(self, cohort: Sequence[int]) -> dict[int, str]:
        """As `Fates`."""
        return {client: self._chance.choice(STEPS) for client in cohort if self._chance.random() < self.drop}

    def lost(self, cohort: Sequence[int]) -> Collection[int]:
        """As `Fates`."""
        return {client for client in sorted(cohort) if self._chance.random() < self.drop}
