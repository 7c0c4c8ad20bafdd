"""Metrics on draws of the test examples with replacement, while a model is tested once.

Each draw counts an example as often as a Poisson variable of mean 1 says (the online bootstrap: Oza 2001; Chamandy et
al. 2012, "Estimating uncertainty for massive data streams"), which is a function of the example itself. So draw b has
the same examples for every model, in whatever order, at whichever site and with whichever seed they are tested.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.comparison.judging import LOSS
from fedcore.data.types import Split
from fedcore.training.engines.batches import TrainingData
from fedcore.training.losses import Loss
from fedcore.training.metrics import Metric

DRAWS: Final = 100
"""The standard error from them is itself off by 1 / sqrt(2 DRAWS), 7 %."""
_MOST_WORK: Final = 2e9
"""Numbers that all draws of a site's test set may look at, some seconds of a processor; beyond, nothing is drawn."""
_CALL: Final = 1e5
"""Numbers that may be looked at in the time that a call of a metric takes."""
_MOST_ROWS: Final = 2000
"""Of examples that are compared with each other."""

Weights: TypeAlias = NDArray[np.int64]
Drawn: TypeAlias = dict[str, Tensor]
"""Metric -> its sums in each draw, float64 [DRAWS, length]; a metric that would take too long is left out."""

_POISSON: Final = np.cumsum([math.exp(-1) / math.factorial(k) for k in range(16)])


def weights_of(test: TrainingData, site: int) -> Weights | None:
    """How often each draw has each example of a test set [DRAWS, n]; None if its length is unknown.

    Examples of arrays are known by their content, others by site and row.
    """
    if isinstance(test, Split):
        x, y = np.ascontiguousarray(test.x), np.ascontiguousarray(test.y)
        digests = (
            hashlib.blake2b(a.tobytes() + b.tobytes(), digest_size=8).digest() for a, b in zip(x, y, strict=True)
        )
        keys = np.array([int.from_bytes(digest, "little") for digest in digests], np.uint64)
    else:
        try:
            rows = len(test)  # type: ignore[arg-type]
        except TypeError:
            return None
        keys = (np.uint64(site) << np.uint64(40)) + np.arange(rows, dtype=np.uint64)
    draws = np.arange(1, DRAWS + 1, dtype=np.uint64)
    uniform = _mixed(_mixed(keys)[None, :] + _mixed(draws)[:, None]) / 2.0**64
    return np.searchsorted(_POISSON, uniform, side="right").astype(np.int64)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64 (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        values = values + np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))


@dataclass(slots=True)
class DrawnMetrics:
    """Metrics for one test of one model, whose sums are noted for every draw as well.

    weights: of the test set.
    loss: of the model; its mean is drawn too, if each example has its own.
    """

    metrics: Sequence[Metric]
    weights: Weights
    loss: Loss
    _sums: dict[str, Tensor] = field(default_factory=dict)
    _row: dict[str, int] = field(default_factory=dict)
    _work: float = 0.0

    def noting(self) -> tuple[Metric, ...]:
        """The same metrics, and the loss, each with a `count` that notes its sums."""
        own = loss_metric(self.loss)
        chosen = (*self.metrics, *([own] if own and own.name not in {one.name for one in self.metrics} else []))
        return tuple(replace(one, count=self._noting(one)) for one in chosen)

    @property
    def drawn(self) -> Drawn:
        """After the test; metrics that were counted on every example."""
        return {name: sums for name, sums in self._sums.items() if self._row.get(name) == self.weights.shape[1]}

    def _noting(self, metric: Metric) -> _NotingCount:
        return _NotingCount(metric, self)

    def note(self, metric: Metric, output: Tensor, targets: Tensor) -> None:
        """Add the sums of some examples, the next ones of the test set."""
        rows, begin = len(targets), self._row.get(metric.name, 0)
        each = metric.over == "example" and output.numel() * DRAWS > rows * _CALL
        self._work += output.numel() + rows * _CALL if each else DRAWS * (_CALL + output.numel())
        if self._work > _MOST_WORK or (metric.over == "set" and rows > _MOST_ROWS):
            self._row[metric.name] = -1
        if begin < 0 or self._row.get(metric.name) == -1 or begin + rows > self.weights.shape[1]:
            return
        weights = torch.from_numpy(self.weights[:, begin : begin + rows])
        sums = self._sums.setdefault(metric.name, torch.zeros(DRAWS, metric.length, dtype=torch.float64))
        if each:
            alone = torch.stack([metric.sums(output[i : i + 1], targets[i : i + 1]).cpu() for i in range(rows)])
            sums += weights.double() @ alone
        else:
            for draw, times in enumerate(weights):
                picked = torch.repeat_interleave(torch.arange(rows), times).to(targets.device)
                if len(picked):
                    sums[draw] += metric.sums(output[picked], targets[picked]).cpu()
        self._row[metric.name] = begin + rows


@dataclass(frozen=True, slots=True)
class _NotingCount:
    metric: Metric
    notes: DrawnMetrics

    def __call__(self, output: Tensor, targets: Tensor) -> Tensor:
        if isinstance(output, Tensor) and isinstance(targets, Tensor) and len(output) == len(targets):
            self.notes.note(self.metric, output, targets)
        return self.metric.count(output, targets)


def loss_metric(loss: Loss) -> Metric | None:
    """The mean loss as a metric, where it is a mean over examples."""
    if loss.of != "output" or loss.over != "example":
        return None

    def count(output: Tensor, targets: Tensor) -> Tensor:
        losses = loss(output, targets).double()
        return torch.stack([losses.sum(), torch.tensor(float(len(losses))).to(losses)])

    return Metric(LOSS, "min", 2, count, lambda sums: float(sums[0] / sums[1]) if sums[1] else math.nan)


def added(parts: Iterable[Drawn]) -> Drawn:
    """The sums of all sites together, of the metrics that every one of them has."""
    drawn = list(parts)
    names = set.intersection(*(set(one) for one in drawn)) if drawn else set()
    return {name: torch.stack([one[name] for one in drawn]).sum(0) for name in sorted(names)}


def figures(drawn: Drawn, metrics: Sequence[Metric], loss: Loss) -> dict[str, tuple[float, ...]]:
    """Each metric in every draw, to six digits."""
    own = loss_metric(loss)
    values = {one.name: one.value for one in (*([own] if own else []), *metrics)}
    return {
        name: tuple(float(f"{values[name](draw):.6g}") for draw in sums)
        for name, sums in drawn.items()
        if name in values
    }
