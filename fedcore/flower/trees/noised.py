"""What a run of boosted trees with noise begins with: no site is asked for anything that has none.

The first query is a level as any other: the root of a tree over bins of equal width between the bounds. Its hessians
count rows, so bins begin and end at quantiles of them, and its gradients give the base score.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedcore.errors import AppError, ConfigurationError
from fedcore.flower.records import arrays_from_state
from fedcore.flower.trees.budget import LevelPlan, RowBudget
from fedcore.flower.trees.first import Columns, grown_on
from fedcore.flower.trees.levels import MOST, LevelQueries, deviation_of_sum
from fedcore.flower.trees.schedule import NOISE_KEYS, BoostingSchedule
from fedcore.flower.trees.sites import Sites
from fedcore.state import ModelState
from fedcore.trees import BoostingSettings, Cuts, Ensemble
from fedcore.trees.cuts import LAST_CUT
from fedcore.trees.ensemble import class_margins
from fedcore.trees.noise import noised_scale
from fedcore.trees.sampling import drawn_features
from fedcore.trees.settings import LOGISTIC, SOFTPROB

_FINER: Final = 2
"""Cells of the first query in a bin."""
_LEAST_SHARE: Final = 1e-3
"""Of a class, whose share of the rows is known with noise."""


def noised_start(
    sites: Sites, schedule: BoostingSchedule, settings: BoostingSettings, columns: Columns, earlier: ModelState | None
) -> tuple[Ensemble, LevelQueries]:
    """The model that the run begins with, and what asks for its levels.

    Raises ConfigurationError for a run whose noise would protect nobody, and AppError if sites stay away.
    """
    shares = sites.noise_shares
    if not shares:
        raise ConfigurationError(
            f"{' and '.join(NOISE_KEYS)} need secure aggregation: each site adds a share of the noise to a masked sum",
            check="noise-needs-masks",
        )
    if settings.subsample < 1:
        raise ConfigurationError(
            f"subsample is {settings.subsample:g}, and a draw of rows depends on how many a site has, which noise for "
            "each row has to hide; set it to 1",
            check="subsample",
        )
    if lacking := [name for name in (*columns.names, "y") if name not in {*columns.bounds, *columns.categories}]:
        raise AppError(f"column {lacking[0]!r} has no bounds, and noise needs them", check="bounds-needed")
    model = None if earlier is None else grown_on(earlier, columns.names, columns.levels, schedule.rounds)
    first = _first(settings if model is None else model.settings, columns, schedule)
    levels = LevelQueries(
        sites=sites,
        scale=noised_scale(settings.objective, _largest(columns)),
        budget=_budget(schedule, first, model, shares),
    )
    return model or _begun(first, levels, columns, schedule), levels


def _largest(columns: Columns) -> float:
    """Gradient of a number: half of the range, as the first ones have it."""
    low, high = columns.bounds["y"]
    return max((high - low) / 2, 1e-12)


def _first(settings: BoostingSettings, columns: Columns, schedule: BoostingSchedule) -> Ensemble:
    """No tree, and bins of equal width."""
    cells = schedule.bins * _FINER
    bounds = (columns.bounds.get(name, (0.0, 1.0)) for name in columns.names)  # categories have levels in their place
    inner = (np.linspace(low, high, cells + 1).astype(np.float32)[1:-1] for low, high in bounds)
    cuts = Cuts.of([np.append(np.unique(one), np.float32(LAST_CUT)) for one in inner], columns.level_counts)
    classes = (0.0,) * settings.num_class
    base = 0.5 if settings.objective == LOGISTIC else sum(columns.bounds["y"]) / 2
    return Ensemble(settings, cuts, columns.names, base, 1, class_margins=classes, levels=columns.levels)


def _budget(schedule: BoostingSchedule, first: Ensemble, model: Ensemble | None, shares: int) -> RowBudget:
    settings, features = first.settings, first.cuts.features
    drawn = len(drawn_features(settings, 0, features))
    widest = [schedule.bins, first.cuts.most_levels] if model is None else np.diff(model.cuts.starts).tolist()
    rounds = schedule.rounds - (0 if model is None else model.rounds)
    levels = [
        (LevelPlan.of(drawn, max(widest), settings.groups << depth, MOST, root=depth == 0), rounds)
        for depth in range(settings.max_depth)
    ]
    if model is None:
        fine = int(np.diff(first.cuts.starts).max())
        levels.append((LevelPlan.of(features, fine, settings.groups, MOST, root=True), 1))
    return RowBudget.of(schedule, settings, drawn, shares, levels)


def _begun(first: Ensemble, levels: LevelQueries, columns: Columns, schedule: BoostingSchedule) -> Ensemble:
    """Bins at quantiles, and base scores, by the answers to the first query."""
    settings, every = first.settings, np.arange(first.cuts.features)
    groups = range(settings.groups)
    record: ArrayRecord = arrays_from_state(ModelState.from_arrays(first.to_arrays()))
    answers = levels.ask(first, 0, record, dict.fromkeys(groups), [every] * settings.groups)
    roots = [levels.scale.floats(answers[group][0]) for group in groups]
    g, h = (np.array([root[kind] for root in roots], np.float64) for kind in (0, 1))
    one = {LOGISTIC: 0.25, SOFTPROB: 2 * (settings.num_class - 1) / max(settings.num_class, 1) ** 2}
    rows = max(float(h.mean()) / one.get(settings.objective, 1.0), 1.0)
    hessians = np.sum([answers[group][1][0, 1] for group in groups], axis=0)
    noise = (
        deviation_of_sum(levels.budget, len(levels.sites.nodes)) * np.sqrt(settings.groups) if levels.budget else 0.0
    )
    cuts = _cuts(first.cuts, np.where(hessians > noise, hessians, 0), columns, schedule)
    room = schedule.rounds * settings.groups
    if settings.objective == SOFTPROB:
        shares = np.maximum(1 / settings.num_class - g / rows, _LEAST_SHARE)
        margins = class_margins((shares / shares.sum()).tolist())
        return Ensemble(settings, cuts, columns.names, 0.0, room, class_margins=margins, levels=columns.levels)
    mean = first.base_score - float(g[0]) / rows
    low, high = (_LEAST_SHARE, 1 - _LEAST_SHARE) if settings.objective == LOGISTIC else columns.bounds["y"]
    base = float(np.float32(min(max(mean, low), high)))
    return Ensemble(settings, cuts, columns.names, base, room, levels=columns.levels)


def _cuts(fine: Cuts, counts: NDArray[np.int64], columns: Columns, schedule: BoostingSchedule) -> Cuts:
    cells: list[Sequence[float]] = []
    edges: list[Sequence[float]] = []
    for feature, name in enumerate(columns.names):
        own = fine.of_feature(feature).astype(np.float64)
        cells.append(counts[fine.starts[feature] : fine.starts[feature + 1]].tolist())
        edges.append([columns.bounds[name][0] if name in columns.bounds else 0.0, *own.tolist()])
    return Cuts.at_quantiles(cells, edges, schedule.bins, columns.level_counts)
