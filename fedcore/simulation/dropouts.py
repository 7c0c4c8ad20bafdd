"""Which simulated clients drop out of an exchange, and before which step."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fedcore.simulation.checkpoint.generators import SavedGenerator, restore_random, save_random
from fedcore.simulation.memory_round import STEPS


class DropoutModel(Protocol):
    """Decides about one exchange after the other, repeated ones too."""

    def drops_at_step(self, cohort: Sequence[int]) -> dict[int, str]:
        """Of a secure exchange: client id -> the step, of `memory_round.STEPS`, before which it disappears."""
        ...

    def drops(self, cohort: Sequence[int]) -> Collection[int]:
        """Which clients give no reply in a plain exchange."""
        ...


@dataclass(slots=True)
class RandomDropout:
    """Each client drops out with a probability, at a step drawn at random.

    drop
        The probability.
    seed
        Repeats what was drawn.
    """

    drop: float
    seed: int
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)  # noqa: S311 - which client drops is no secret

    def drops_at_step(self, cohort: Sequence[int]) -> dict[int, str]:
        return {client: self._rng.choice(STEPS) for client in cohort if self._rng.random() < self.drop}

    def drops(self, cohort: Sequence[int]) -> Collection[int]:
        return {client for client in sorted(cohort) if self._rng.random() < self.drop}

    def save(self) -> SavedGenerator:
        """Where it stands, as JSON."""
        return save_random(self._rng)

    def restore(self, saved: SavedGenerator) -> None:
        """Put it where it stood."""
        restore_random(self._rng, saved)
