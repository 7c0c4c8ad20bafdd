"""How many seeds a comparison has if nobody says it: five where one takes seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fedcore.comparison.results import RunResult

SEEDS: Final = 5
QUICK_SECONDS: Final = 60.0
"""All modes together may take so long with one seed, trials of tuning included, for the others to follow."""


def further_seeds(first: int, results: Sequence[RunResult], *, trials: float = 0.0) -> tuple[tuple[int, ...], str]:
    """The seeds that follow the first, and a line that says why.

    What was measured lies with the results, so that a comparison that goes on decides the same.

    Args:
        results: of all modes with the first seed.
        trials: seconds that tuning them took.
    """
    if any(result.status == "failed" for result in results):
        return (), f"seed {first} alone, since not every mode finished with it"
    seconds = trials + sum(result.wall_seconds for result in results)
    if seconds >= QUICK_SECONDS:
        return (), f"seed {first} alone: it took {seconds:.0f} s; --seeds {SEEDS} runs {SEEDS}"
    seeds = tuple(range(first + 1, first + SEEDS))
    return seeds, (
        f"seed {first} took {seconds:.0f} s, so that seeds {seeds[0]} to {seeds[-1]} follow; --seeds 1 runs one alone"
    )
