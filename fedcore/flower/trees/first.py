"""What a run of boosted trees begins with, from statistics of the columns: bins, base scores and the scale of sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedcore.data.statistics import Column, Statistics
from fedcore.errors import AppError, ConfigurationError
from fedcore.flower.trees.schedule import BoostingSchedule
from fedcore.state import ModelState
from fedcore.trees import BoostingSettings, Cuts, Ensemble, Scale
from fedcore.trees.ensemble import class_margins
from fedcore.trees.settings import SOFTPROB, SQUARED_ERROR

_SAMPLED_ROOM: Final = 16.0
"""Errors of rows that no tree has drawn may grow; sums have room for this many times the first ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Names of the features, levels of those with categories, and bounds of the others and of the target, "y"."""

    names: tuple[str, ...]
    categories: Mapping[str, Sequence[str]]
    bounds: Mapping[str, tuple[float, float]]

    @property
    def levels(self) -> tuple[tuple[str, ...], ...]:
        """Of each feature, none for numbers."""
        return tuple(tuple(self.categories.get(name, ())) for name in self.names)

    @property
    def level_counts(self) -> dict[int, int]:
        """How many categories a feature has, by its number."""
        return {at: len(part) for at, part in enumerate(self.levels) if part}


def started(
    schedule: BoostingSchedule,
    settings: BoostingSettings,
    columns: Columns,
    statistics: Statistics,
    earlier: ModelState | None,
) -> Ensemble:
    """The model that the run begins with: bins and base scores alone, or the trees that there are.

    Raises ConfigurationError or AppError for what no trees can grow from.
    """
    names, levels = columns.names, columns.levels
    if lacking := [name for name in (*names, "y") if name not in statistics.columns and name not in columns.categories]:
        raise AppError(f"there are no statistics of column {lacking[0]!r}: give it bounds", check="bounds-needed")
    if statistics.columns["y"].missing:
        raise AppError("some targets are missing (NaN): leave these rows out", check="target-missing")
    if earlier is not None:
        return grown_on(earlier, names, levels, schedule.rounds)
    known = [statistics.columns.get(name) for name in names]
    cells, edges = ([() if one is None else getattr(one, key) for one in known] for key in ("cells", "edges"))
    cuts = Cuts.at_quantiles(cells, edges, schedule.bins, columns.level_counts)
    room = schedule.rounds * settings.groups
    if settings.objective == SOFTPROB:
        margins = class_margins(class_counts(statistics.columns["y"], settings.num_class))
        return Ensemble(settings, cuts, names, 0.0, room, class_margins=margins, levels=levels)
    base = float(np.float32(statistics.mean["y"]))
    return Ensemble(settings, cuts, names, base, room, levels=levels)


def grown_on(earlier: ModelState, names: tuple[str, ...], levels: tuple[tuple[str, ...], ...], rounds: int) -> Ensemble:
    """The earlier model with room for more trees."""
    model = Ensemble.from_arrays({name: np.asarray(earlier[name]) for name in earlier})
    if (model.names, model.levels) != (names, levels):
        raise ConfigurationError(
            "the model that the run is to begin with is for other columns or categories than the app has",
            check="other-columns",
        )
    if model.rounds >= rounds:
        raise ConfigurationError(
            f"the model that the run is to begin with has the trees of {model.rounds} rounds already, and "
            f"num-server-rounds, which counts all of them, is {rounds}; set it higher",
            check="trees-grown",
        )
    model.room = rounds * model.settings.groups
    return model


def class_counts(target: Column, classes: int) -> list[float]:
    """How many rows each class 0, 1 and so on has, from the cells of the target.

    Raises AppError if the bounds do not tell classes apart, or if a target is none of them.
    """
    numbers = np.arange(classes)
    cells, bins = np.asarray(target.cells), len(target.cells)
    places = np.minimum((numbers - target.low) / (target.high - target.low) * bins, bins - 1).astype(np.int64)
    if target.low > 0 or target.high < classes - 1 or len(np.unique(places)) < classes:
        raise AppError(
            f"the bounds of y are {target.low:g} and {target.high:g}; for {classes} classes make them 0 and "
            f"{classes - 1}",
            check="class-bounds",
        )
    counts = cells[places]
    if target.below or target.above or counts.sum() != cells.sum():
        raise AppError(
            f"some targets are none of the classes 0 to {classes - 1}; num-class in the run config says how many "
            "there are",
            check="class-target",
        )
    return [float(count) for count in counts]


def scale_of(ensemble: Ensemble, statistics: Statistics) -> Scale:
    """The finest scale for which the sums of all rows have room, in all rounds.

    The gradients of the losses of classes are at most 1. The sum of squared errors never grows, since a leaf of
    learning rate up to 1 moves its rows towards their mean, so by Cauchy-Schwarz neither does the bound on absolute
    errors; if trees grow from some of the rows alone, others may move away.
    """
    target = statistics.columns["y"]
    rows = max(float(target.count), 1.0)
    if ensemble.settings.objective != SQUARED_ERROR:
        return Scale.of(rows, rows)
    spread = target.variance + (target.mean - ensemble.base_score) ** 2
    largest = max(abs(target.low), abs(target.high))
    more = _SAMPLED_ROOM if ensemble.settings.subsample < 1 else 1.0
    return Scale.of(more * rows * (1.01 * float(np.sqrt(spread)) + 1e-6 * largest), rows)
