"""The bins of all features: where XGBoost's `HistogramCuts` may split, the same at every site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import ConfigurationError

NO_BIN: Final = -1
"""The bin of a missing value (NaN)."""
LAST_CUT: Final = float(np.finfo(np.float32).max)
"""Above every value, so that no value at any site is beyond the last bin."""


@dataclass(frozen=True, slots=True, eq=False)
class Cuts:
    """Upper ends of the bins of each feature: bin k of a feature holds cut k-1 <= value < cut k.

    values: the cuts of one feature after the other, rising, float32 [bins].
    starts: where those of each feature begin, int [features + 1].
    categories: the features whose values are categories 0, 1 and so on, rising: these are their cuts, each its bin.
    """

    values: NDArray[np.float32]
    starts: NDArray[np.int64]
    categories: tuple[int, ...] = ()

    @classmethod
    def of(cls, features: Sequence[Sequence[float] | NDArray[Any]], levels: Mapping[int, int] | None = None) -> Cuts:
        """From the cuts of each feature; raises ConfigurationError if they do not rise or a feature has none.

        Args:
            levels: how many categories a feature has; its cuts do not count.
        """
        levels = levels or {}
        features = [np.arange(levels[at]) if at in levels else cuts for at, cuts in enumerate(features)]
        parts = [np.asarray(cuts, np.float32) for cuts in features]
        for index, part in enumerate(parts):
            if part.ndim != 1 or not part.size or not np.isfinite(part).all() or (np.diff(part) <= 0).any():
                raise ConfigurationError(f"the cuts of feature {index} do not rise, or there are none", check="cuts")
        starts = np.concatenate(([0], np.cumsum([part.size for part in parts]))).astype(np.int64)
        return cls(np.concatenate(parts) if parts else np.zeros(0, np.float32), starts, tuple(sorted(levels)))

    @classmethod
    def at_quantiles(
        cls,
        cells: Sequence[Sequence[float]],
        edges: Sequence[Sequence[float]],
        bins: int,
        levels: Mapping[int, int] | None = None,
    ) -> Cuts:
        """At the edges of fine histograms that come next to the quantiles, at most `bins` bins a feature.

        Args:
            cells: how many values each cell of a feature holds, over all sites.
            edges: where these cells begin and end, one more than there are cells.
            levels: how many categories a feature has, whose cells and edges do not count.
        """
        levels = levels or {}
        rows = enumerate(zip(cells, edges, strict=True))
        return cls.of(
            [() if at in levels else _at_quantiles(np.asarray(c), np.asarray(e), bins) for at, (c, e) in rows], levels
        )

    @property
    def features(self) -> int:
        return len(self.starts) - 1

    @property
    def bins(self) -> int:
        """Of all features together."""
        return len(self.values)

    @property
    def most_levels(self) -> int:
        """Of all columns of categories; 0 if there are none."""
        return max((int(self.starts[at + 1] - self.starts[at]) for at in self.categories), default=0)

    def only(self, features: NDArray[np.int64]) -> Cuts:
        """Those of some features alone, in this order."""
        if len(features) == self.features:
            return self
        sizes = np.diff(self.starts)[features]
        categories = tuple(np.flatnonzero(np.isin(features, self.categories)).tolist())
        starts = np.concatenate(([0], np.cumsum(sizes)))
        return Cuts(self.values[self.bins_in(features)], starts, categories)

    def bins_in(self, features: NDArray[np.int64]) -> NDArray[np.int64]:
        """The bins of these features, one feature after the other."""
        return np.concatenate([np.arange(self.starts[at], self.starts[at + 1]) for at in features])

    def of_feature(self, feature: int) -> NDArray[np.float32]:
        return self.values[self.starts[feature] : self.starts[feature + 1]]

    def bins_of(self, x: NDArray[np.float32]) -> NDArray[np.int32]:
        """The bin of each value among those of all features, NO_BIN for a NaN; int32 [rows, features].

        As XGBoost does, a value above the last cut counts in the last bin, and what is no whole number counts as the
        category below it.
        """
        bins = np.empty(x.shape, np.int32)
        for feature in range(self.features):
            cuts, column = self.of_feature(feature), x[:, feature]
            if feature in self.categories:
                places = np.clip(np.nan_to_num(column), 0, len(cuts) - 1).astype(np.int64)
            else:
                places = np.minimum(np.searchsorted(cuts, column, side="right"), len(cuts) - 1)
            bins[:, feature] = np.where(np.isnan(column), NO_BIN, places + self.starts[feature])
        return bins


def _at_quantiles(cells: NDArray[Any], edges: NDArray[Any], bins: int) -> NDArray[np.float32]:
    upto = np.cumsum(np.maximum(np.asarray(cells, np.float64), 0.0))
    total = upto[-1]
    if not total:
        return np.array([LAST_CUT], np.float32)
    targets = total * np.arange(1, bins) / bins
    places = np.unique(np.searchsorted(upto, targets, side="left"))
    inner = edges[1:][places[upto[places] < total]]  # an edge with all values below it parts nothing
    return np.append(np.unique(inner.astype(np.float32)), np.float32(LAST_CUT))
