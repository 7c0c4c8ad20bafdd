"""Layers that know the federation's statistics, so that a model reads and answers in the units of its table.

The numbers are buffers: they are in the first model that the server sends, no client changes them, and anybody who has
the model's file can predict with it and needs nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcore.data.statistics import BALANCED, PREFIX, WEIGHT_KEY, class_columns
from fedcore.errors import ConfigurationError, UsageError
from fedcore.training.rules import WeighingLayer

MUCH_BEYOND: Final = 0.1
"""The share of a site's values of a column from which on it is remarkable that they are beyond a layer's limit."""


class _Columns(nn.Module):
    """Mean and standard deviation of some columns, float32 [d]; nan until `know` has set them.

    bounds: lowest and highest value of each column. With them nobody is asked: mean and deviation are those of values
        that lie evenly between the bounds, and no part of the model that travels. For runs with differential privacy:
        they answer no query, and add noise to every number of the model.
    """

    mean: Tensor
    std: Tensor
    spreads: Mapping[str, float] = MappingProxyType({})

    def __init__(self, names: Sequence[str], *, bounds: Mapping[str, tuple[float, float]] | None = None) -> None:
        super().__init__()
        self.names = tuple(names)
        scales = [(math.nan, math.nan) if bounds is None else _between(bounds.get(name)) for name in self.names]
        for buffer, values in (("mean", [mean for mean, _ in scales]), ("std", [std for _, std in scales])):
            self.register_buffer(buffer, torch.tensor(values), persistent=bounds is None and bool(self.names))

    def know(self, statistics: Mapping[str, Any]) -> None:
        """Take over what `Statistics.as_config` gave; a column that was not asked for stays as it comes.

        One of which no client has a value, whose statistics are nan, is 0 for all of them.
        """
        names = statistics[f"{PREFIX}columns"]
        means = dict.fromkeys(self.names, 0.0)
        deviations = {**dict.fromkeys(self.names, 1.0), **self.spreads}
        for buffer, key, defaults in ((self.mean, "mean", means), (self.std, "std", deviations)):
            known = {**defaults, **dict(zip(names, statistics[PREFIX + key], strict=True))}
            buffer.copy_(torch.tensor([known[name] for name in self.names]).nan_to_num(nan=0.0))

    def _check(self) -> None:
        # Not in eval mode: an exported model has no such branch, and there a nan shows in every output.
        if self.training and bool(torch.isnan(self.mean).any()):
            raise UsageError(
                f"{type(self).__name__} has no statistics yet: averaging_server asks for them before the first round, "
                "if the app names its columns and their bounds (TrainingColumns)",
                check="no-statistics",
            )


def _between(bounds: tuple[float, float] | None) -> tuple[float, float]:
    """Mean and deviation of values that lie evenly between the bounds; 0 and 1 without them."""
    return (0.0, 1.0) if bounds is None else ((bounds[0] + bounds[1]) / 2, (bounds[1] - bounds[0]) / math.sqrt(12))


class Standardise(_Columns):
    """Features [n, d], nan if missing, less the federation's means and over its deviations; float32 [n, d].

    A missing value becomes 0, which is the mean, and so does a column that is the same everywhere. names: of the d
    columns; those without statistics or bounds pass as they are. Raises UsageError in training without statistics
    and bounds.

    limit: of the result, in deviations: what lies further from the mean counts as that far, so that a few extreme
        values do not decide what a linear model learns of a column. None for no limit.
    spreads: deviations of columns that have no statistics, such as those of categories (`TableSchema.spreads`).
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        bounds: Mapping[str, tuple[float, float]] | None = None,
        limit: float | None = None,
        spreads: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(names, bounds=bounds)
        self.spreads = dict(spreads or {})
        if limit is not None and not limit > 0:
            raise UsageError(f"Standardise: limit is a number of deviations above 0, not {limit}", check="limit")
        self.limit = limit

    def forward(self, x: Tensor) -> Tensor:
        """x, standardised."""
        self._check()
        scaled = (x - self.mean) / self.std
        if self.limit is not None:
            scaled = scaled.clamp(-self.limit, self.limit)
        return torch.where(torch.isnan(x) | (self.std == 0), 0.0, scaled)


class Rescale(_Columns):
    """The way back: outputs [n, d] of mean 0 and deviation 1 in the units of the target columns; float32 [n, d]."""

    def forward(self, output: Tensor) -> Tensor:
        """The output, in the columns' units."""
        self._check()
        scaled: Tensor = output * self.std + self.mean
        return scaled


_LEAST_SHARE: Final = 1e-4
"""What a class is taken to have of the examples if it has less, so that no weight becomes infinite."""


class ClassWeights(WeighingLayer, _Columns):
    """The last layer of a classifier, whose classes count alike in training however rare they are; float32 [n, k].

    With "balanced" an example of class c weighs 1 / (classes * share of c), as scikit-learn's class_weight="balanced",
    by the shares that the classes have among all sites' training examples (`TrainingColumns(classes=...)`). The
    outputs in training are then those of classes that are equally frequent. Elsewhere the log of the shares is added
    to them, so that probabilities are those of the classes as they are (Saerens, Latinne and Decaestecker 2002). With
    "none" nothing changes, and the layer has no tensors.

    classes: how many; for two of them outputs are one logit [n, 1], above 0 for the second, or [n, 2].
    kind: "balanced" or "none"; raises ConfigurationError for another one.
    """

    def __init__(self, classes: int, kind: str = BALANCED) -> None:
        if kind not in (BALANCED, "none"):
            raise ConfigurationError(f'{WEIGHT_KEY} is "none" or "{BALANCED}", not {kind!r}', check=WEIGHT_KEY)
        super().__init__(class_columns(classes) if kind == BALANCED else ())

    @property
    def weighs(self) -> bool:
        """Whether the layer is "balanced"."""
        return bool(self.names)

    def example_weights(self, targets: Tensor) -> Tensor | None:
        """Float32 [n] for classes [n]; None with "none"."""
        if not self.weighs:
            return None
        self._check()
        weights = 1 / (len(self.names) * self._shares)
        return weights[targets.long()]

    def forward(self, output: Tensor) -> Tensor:
        """The output, corrected by the shares of the classes if the layer is not in training."""
        if self.training or not self.weighs:
            return output
        logs = self._shares.log()
        return output + (logs[1:] - logs[:1] if output.shape[1] == 1 else logs)

    @property
    def _shares(self) -> Tensor:
        return self.mean.clamp(min=_LEAST_SHARE)


def remarks_on_scale(model: nn.Module, x: NDArray[np.floating[Any]]) -> list[str]:
    """Which columns of a site's own rows lie far off the federation's scale, a sentence each, for its owner alone.

    A column is remarkable if more than `MUCH_BEYOND` of its values lie beyond the limit of the model's `Standardise`.
    Categories never are.

    Args:
        model: of the app, with its statistics.
        x: features [n, d] of the site's rows, nan if missing; d other than the layer's says nothing.
    """
    made = []
    for layer in (module for module in model.modules() if isinstance(module, Standardise)):
        if layer.limit is None or x.ndim != 2 or x.shape[1] != len(layer.names) or bool(torch.isnan(layer.mean).any()):
            continue
        mean, std = (buffer.detach().cpu().numpy() for buffer in (layer.mean, layer.std))
        for name, values, middle, deviation in zip(layer.names, x.T, mean, std, strict=True):
            known = values[~np.isnan(values)]
            if name in layer.spreads or not deviation or not known.size:
                continue
            if (share := float((np.abs(known - middle) > layer.limit * deviation).mean())) > MUCH_BEYOND:
                made.append(
                    f"column {name!r}: {share:.0%} of this site's values lie more than {layer.limit:g} deviations from "
                    "the federation's mean, and count as that far. If the scale is of an earlier run with other sites, "
                    "it may not fit this one"
                )
    return made


def statistics_in(model: nn.Module, state: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """The inverse of `set_statistics`: what a trained model says of its columns, as `Statistics.as_config` gives it.

    {} if it says nothing of some.

    Args:
        model: of the app.
        state: the trained model's tensors by name.
    """
    means, deviations = dict[str, float](), dict[str, float]()
    for name, module in model.named_modules():
        if isinstance(module, _Columns) and module.names:
            keys = [f"{name}.{buffer}".removeprefix(".") for buffer in ("mean", "std")]
            if not all(key in state for key in keys):
                return {}
            means |= dict(zip(module.names, np.asarray(state[keys[0]], float).tolist(), strict=True))
            deviations |= dict(zip(module.names, np.asarray(state[keys[1]], float).tolist(), strict=True))
    if any(math.isnan(value) for value in (*means.values(), *deviations.values())):
        return {}
    return {
        f"{PREFIX}columns": list(means),
        f"{PREFIX}mean": list(means.values()),
        f"{PREFIX}std": list(deviations.values()),
    }


def set_statistics(model: nn.Module, statistics: Mapping[str, Any]) -> None:
    """Tell the layers of a model that stand for columns what the federation found; nothing if it asked nothing."""
    if not statistics:
        return
    for module in model.modules():
        if isinstance(module, _Columns):
            module.know(statistics)
