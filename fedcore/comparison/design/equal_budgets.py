"""The models of a comparison at equal budgets: equal examples, equal steps, equal seconds.

A round of one mode is not a round of another, and at equal examples they make different numbers of steps. What a mode
has at a budget is the last model on its curve at or before it; nothing is interpolated between models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, TypeAlias

from fedcore.comparison.results import CurvePoint, RunResult

Equal: TypeAlias = Literal["examples", "steps", "seconds"]
Amount: TypeAlias = Callable[[CurvePoint], float | None]
"""How much of a budget a point of a curve has taken; None if it is unknown."""
TOLERANCE: Final = 0.01
"""Numbers of examples and steps that differ by no more count as equal: rounds are whole."""
WORTH_SAYING: Final = 1.05
"""How many times a budget the other has to be before the report names it."""


def amounts(runs: Iterable[RunResult]) -> dict[Equal, Amount]:
    """How much of each budget a point of a curve has taken; seconds are simulated ones if there are some.

    Args:
        runs: of the whole comparison.
    """
    simulated = any(run.simulated_seconds is not None for run in runs)
    return {
        "examples": lambda point: point.samples,
        "steps": lambda point: point.steps,
        "seconds": lambda point: point.simulated_seconds if simulated else point.seconds,
    }


def total(run: RunResult, amount: Amount) -> float | None:
    """What a whole run takes of a budget; None if it is unknown, or if examples are private."""
    return amount(run.curve[-1]) if run.curve and run.curve[-1].round else None


def limits(runs: Iterable[RunResult], amount: Amount) -> dict[int, float]:
    """By seed, the most that all of the finished runs have taken: the least of their totals."""
    least: dict[int, float] = {}
    for run in runs:
        used = total(run, amount)
        if run.status == "finished" and used is not None:
            least[run.seed] = min(used, least.get(run.seed, used))
    return least


def point_at(
    run: RunResult,
    limit: float | None,
    amount: Amount,
    known: Callable[[CurvePoint], bool],
    *,
    tolerance: float = TOLERANCE,
) -> CurvePoint | None:
    """The last model of a run at or before a budget; None if its first round takes more.

    Args:
        known: whether a point is evaluated; others are passed over.
    """
    if limit is None:
        return None
    points = [point for point in run.curve if point.round and known(point)]
    within = [point for point in points if (used := amount(point)) is not None and used <= limit * (1 + tolerance)]
    return within[-1] if within else None


def apart(runs: Mapping[str, Iterable[RunResult]], amount: Amount) -> dict[str, float]:
    """By mode, the mean over its runs of what they take of a budget; a mode without such a number is left out."""
    means = {}
    for label, of in runs.items():
        totals = [total(run, amount) for run in of]
        known = [used for used in totals if used is not None]
        if known and len(known) == len(totals):
            means[label] = sum(known) / len(known)
    return means
