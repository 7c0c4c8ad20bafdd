"""Figures that need the examples of all sites in one place, which only the evaluation of a comparison has.

In a federation only sums travel, so that AUC has cells and a c-index only the pairs within sites. Here one process
tests every model on every site: the AUC is exact over the scores of all sites, and a metric of pairs has those of two
sites as well. Figures of rounds that clients evaluated are made of their sums, without these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from fedcore.errors import UsageError
from fedcore.training.losses import Loss, binary_cross_entropy, cross_entropy
from fedcore.training.metrics import Metric, brier, calibration_error, exact_auc, two_class_logits

AUC: Final = "auc"
EXACT: Final = "/exact"
"""Behind the name of an AUC that the app counts in cells."""
ALL_PAIRS: Final = "/all_pairs"
MEAN_OF_SITES: Final = "/mean_of_sites"
"""Behind the name of a metric of pairs: with those of two sites; and the mean of the sites' own figures."""

_FROM_SCORES: Final = (brier, calibration_error())
_EXACT_AUC: Final = (
    "area under the ROC curve over all pairs of one example of each class, also of two sites: exact, from the scores "
    "of all test examples in one place"
)


def scored(loss: Loss) -> bool:
    """Whether a model trained by this loss gives probabilities."""
    return loss is cross_entropy or loss is binary_cross_entropy


def further_metrics(metrics: Sequence[Metric], *, two_classes: bool) -> dict[str, tuple[str, str]]:
    """Names of the figures that are added to these metrics, with "max" or "min" and what they are.

    Args:
        two_classes: of an app whose examples are of two, and whose models give probabilities.
    """
    names = {metric.name for metric in metrics}
    further: dict[str, tuple[str, str]] = {}
    if two_classes:
        further[AUC + EXACT if AUC in names else AUC] = ("max", _EXACT_AUC)
        further |= {one.name: (one.better, one.definition) for one in _FROM_SCORES if one.name not in names}
    for metric in metrics:
        if metric.over == "set":
            of = f"{metric.name} over all pairs of test examples, also those of two sites"
            further[metric.name + ALL_PAIRS] = (metric.better, of)
            of = f"{metric.name} of each site's test examples, mean over the sites"
            further[metric.name + MEAN_OF_SITES] = (metric.better, of)
    return further


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenExamples:
    """What a model gave for test examples.

    logits, labels: of two classes, [n] each; None if the examples are not of two.
    pairs: outputs and targets [n, ...] for metrics over a set; None if the app has none.
    """

    logits: Tensor | None = None
    labels: Tensor | None = None
    pairs: tuple[Tensor, Tensor] | None = None

    def figures(self, names: frozenset[str]) -> dict[str, float]:
        """AUC and calibration; without examples of both classes there is no AUC.

        Args:
            names: of the app's own metrics.
        """
        if self.logits is None or self.labels is None or not len(self.labels):
            return {}
        both = bool((self.labels != self.labels[0]).any())
        values = {AUC + EXACT if AUC in names else AUC: exact_auc(self.logits, self.labels)} if both else {}
        for metric in _FROM_SCORES:
            if metric.name not in names:
                values[metric.name] = metric.value(metric.sums(self.logits, self.labels))
        return values

    @staticmethod
    def together(parts: Sequence[SeenExamples]) -> SeenExamples:
        """Those of several sites."""
        logits = [part.logits for part in parts if part.logits is not None]
        labels = [part.labels for part in parts if part.labels is not None]
        pairs = [part.pairs for part in parts if part.pairs is not None]
        two = len(logits) == len(labels) == len(parts) > 0
        return SeenExamples(
            logits=torch.cat(logits) if two else None,
            labels=torch.cat(labels) if two else None,
            pairs=(torch.cat([output for output, _ in pairs]), torch.cat([targets for _, targets in pairs]))
            if len(pairs) == len(parts) > 0
            else None,
        )


def of_pairs(
    metrics: Sequence[Metric], outputs: SeenExamples, sites: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """Each metric over a set in the other two ways.

    Args:
        outputs: by all sites together.
        sites: the figures of each site, without those that mean nothing there.
    """
    values: dict[str, float] = {}
    for metric in metrics:
        if metric.over != "set" or outputs.pairs is None:
            continue
        values[metric.name + ALL_PAIRS] = metric.value(metric.sums(*outputs.pairs))
        known = [site[metric.name] for site in sites if metric.name in site]
        if known:
            values[metric.name + MEAN_OF_SITES] = sum(known) / len(known)
    return {name: value for name, value in values.items() if not math.isnan(value)}


@dataclass(slots=True)
class Recorder:
    """Sees the test examples of one site next to the app's metrics, as metrics themselves do.

    loss, metrics: of the app.
    """

    loss: Loss
    metrics: Sequence[Metric]
    _two: list[tuple[Tensor, Tensor]] | None = field(default_factory=list)
    _pairs: tuple[Tensor, Tensor] | None = None

    def extras(self) -> tuple[Metric, ...]:
        """Metrics to give to the evaluation; their sums say nothing."""
        extras = []
        if scored(self.loss):
            extras.append(Metric("recorded.scores", "max", 1, self._see_batch, float))
        if any(metric.over == "set" for metric in self.metrics):
            extras.append(Metric("recorded.set", "max", 1, self._see_whole, float, over="set"))
        return tuple(extras)

    def outputs(self) -> SeenExamples:
        """After the evaluation."""
        two = self._two or []
        logits, labels = (torch.cat(each) for each in zip(*two, strict=True)) if two else (None, None)
        return SeenExamples(logits=logits, labels=labels, pairs=self._pairs)

    def _see_batch(self, output: Tensor, targets: Tensor) -> Tensor:
        if self._two is not None:
            try:
                logits, labels = two_class_logits(output, targets)
                self._two.append((logits.cpu(), labels.cpu()))
            except UsageError:  # more classes, or several positions
                self._two = None
        return torch.zeros(1)

    def _see_whole(self, output: Tensor, targets: Tensor) -> Tensor:
        self._pairs = (output.cpu(), targets.cpu())
        return torch.zeros(1)
