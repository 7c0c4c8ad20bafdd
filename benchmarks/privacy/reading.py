"""What counts as read: guesses of an attacker next to the true training records, and to the clients' updates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

PIXELS: Final = 0.05
"""Of digits: the root of the mean squared error over 64 pixels of 0 to 1."""
DEVIATIONS: Final = 0.1
"""Of heart_disease: the same over 13 features, in their standard deviations."""
UPDATE: Final = 0.01
"""The relative error (L2) within which the update of a client is read."""


@dataclass(slots=True)
class Reading:
    """What an attack has read so far.

    records: by their place among all training records.
    updates: of which clients, from 0 on.
    singles: values that are known to belong to one person alone, whom nothing else is known of.
    """

    records: set[int] = field(default_factory=set)
    updates: set[int] = field(default_factory=set)
    correlations: dict[int, float] = field(default_factory=dict)
    best: float = 0.0
    singles: int = 0

    @property
    def correlation(self) -> float:
        """The mean over what was read; the largest of all guesses if nothing was."""
        return float(np.mean([*self.correlations.values()])) if self.correlations else self.best

    def guess_records(self, guesses: Vector, truth: Vector, tolerance: float) -> None:
        """Count the distinct records [records, features] that a row of the guesses comes near to."""
        middle, spread = truth.mean(axis=0), truth - truth.mean(axis=0)
        lengths = np.linalg.norm(spread, axis=1)
        for guess in guesses[np.isfinite(guesses).all(axis=1)]:
            errors = np.sqrt(np.mean((truth - guess) ** 2, axis=1))
            nearest = int(errors.argmin())
            cosine = _cosine(guess - middle, spread[nearest], float(lengths[nearest]))
            self.best = max(self.best, cosine)
            if errors[nearest] <= tolerance:
                self.records.add(nearest)
                self.correlations[nearest] = max(cosine, self.correlations.get(nearest, 0.0))

    def guess_updates(self, guesses: Iterable[Vector], truth: Sequence[Vector]) -> None:
        """Count the clients whose update, [parameters] each, a guess comes near to."""
        for guess in guesses:
            for client, update in enumerate(truth):
                cosine = _cosine(guess, update, float(np.linalg.norm(update)))
                self.best = max(self.best, cosine)
                if np.linalg.norm(guess - update) <= UPDATE * np.linalg.norm(update):
                    self.updates.add(client)
                    self.correlations[-1 - client] = cosine


def _cosine(guess: Vector, true: Vector, length: float) -> float:
    norms = float(np.linalg.norm(guess)) * length
    return float(guess @ true) / norms if norms else 0.0
