"""Metrics computed from sums, so that those of batches, ranks and sites add up to the federation's.

A metric is two functions. `count` gives sums over some examples, and `value` reads the figure off the sums of all. A
mean of sites' RMSEs or AUCs is not the federation's; the figure of their added sums is. Own ones are made like those
here:

    def count(output: Tensor, targets: Tensor) -> Tensor:      # [2]
        return torch.stack([(output > targets).sum(), torch.tensor(len(output), device=output.device)])

    too_high = Metric("too_high", "min", 2, count, lambda sums: float(sums[0] / sums[1]), meaning="share of ...")
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedcore.errors import ConfigurationError, UsageError
from fedcore.training.losses import IGNORED, at_positions, one_tensor, paired, survival

SUMS = "/sums"
"""Behind the name of a metric whose sums a client reports, each divided by the weight of the reply."""

_MOST_EXPONENT = 700
"""e to more than this is no float64."""

_ROWS = 1024
"""Examples that are compared with all others at a time."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of a model on some examples.

    name: as it is reported.
    better: whether more or less of it is better.
    length: number of sums.
    count: (output of the model [n, ...], targets [n, ...]) -> sums over these examples [length].
    value: sums over all -> the figure, nan if it means nothing.
    over: "example" if the sums of any parts add up to those of the whole; "set" if examples are compared with
        each other, so that a site counts its whole test set at once and only sites are added.
    meaning: what it is, in one sentence, for reports; by default the first paragraph of the docstring of `count`.
    """

    name: str
    better: Literal["max", "min"]
    length: int
    count: Callable[[Tensor, Tensor], Tensor]
    value: Callable[[Tensor], float]
    over: Literal["example", "set"] = "example"
    meaning: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z][\w.-]*", self.name):
            raise ConfigurationError(f"a metric's name has letters, digits, '_', '-' and '.', unlike {self.name!r}")
        if self.better not in ("max", "min") or self.over not in ("example", "set") or self.length < 1:
            raise ConfigurationError(
                f'metric {self.name}: better is "max" or "min", over "example" or "set", length at least 1'
            )

    def sums(self, output: Tensor, targets: Tensor) -> Tensor:
        """`count` of some examples, float64 [length]; raises ConfigurationError if it gives something else."""
        sums = self.count(output, targets).to(torch.float64)
        if sums.shape != (self.length,):
            raise ConfigurationError(
                f"metric {self.name}: count returned the shape {list(sums.shape)}, and its length is {self.length}"
            )
        return sums

    @property
    def definition(self) -> str:
        """What it is, in one sentence; "" if nobody wrote it down."""
        if self.meaning or not inspect.isfunction(self.count):
            return self.meaning
        return " ".join((inspect.getdoc(self.count) or "").partition("\n\n")[0].split())

    @property
    def sums_name(self) -> str:
        """The name under which a client reports the sums."""
        return self.name + SUMS


def checked_metrics(metrics: Sequence[object]) -> tuple[Metric, ...]:
    """The metrics, if they are ones, each once; raises ConfigurationError."""
    checked = tuple(metric for metric in metrics if isinstance(metric, Metric))
    for metric in metrics:
        if not isinstance(metric, Metric):
            name = getattr(metric, "__name__", repr(metric))
            call = f"; write {name}()" if metric in (f1, majority, auc, average_precision, calibration_error) else ""
            raise ConfigurationError(f"{name} is no Metric of fedcore.training.metrics{call}")
    names = [metric.name for metric in checked]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"two metrics have one name: {', '.join(names)}")
    return checked


def _exp(value: float) -> float:
    return math.exp(value) if value < _MOST_EXPONENT else math.inf


def _ratio(sums: Tensor) -> float:
    """The first sum over the second."""
    return float(sums[0] / sums[1]) if sums[1] else math.nan


# --- classes --------------------------------------------------------------------------------------------------------


def _classes(output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Predicted and true class at each counted position, int64 [m]; if shapes are equal, of each label."""
    output = one_tensor(output)
    if output.shape == targets.shape or (output.dim() == 2 and output.shape[1:] == (1,) and targets.dim() == 1):
        predicted = (output > 0).long().reshape(targets.shape)
    elif output.shape[:-1] == targets.shape and output.dim() in (2, 3):
        predicted = output.argmax(dim=-1)
    else:
        raise UsageError(
            f"a model's output of shape {list(output.shape)} does not fit targets of shape {list(targets.shape)}",
            check="targets-do-not-fit",
        )
    mask = targets != IGNORED
    return predicted[mask], targets[mask]


def _right(output: Tensor, targets: Tensor) -> Tensor:
    predicted, actual = _classes(output, targets)
    return torch.tensor([(predicted == actual).sum(), actual.numel()], dtype=torch.float64, device=targets.device)


def f1(classes: int = 2) -> Metric:
    """F1, the harmonic mean of precision and recall of a class, averaged over the classes that occur (macro).

    Sums: of each class, how often it was rightly, wrongly and not predicted, [3 classes].
    """

    def count(output: Tensor, targets: Tensor) -> Tensor:
        predicted, actual = _classes(output, targets)
        actual = actual.long()
        if actual.numel() and not 0 <= int(actual.min()) <= int(torch.maximum(actual, predicted).max()) < classes:
            raise UsageError(f"f1({classes}) met a class that is not among 0 to {classes - 1}", check="no-such-class")
        both = torch.bincount(actual * classes + predicted, minlength=classes**2).reshape(classes, classes).double()
        right = both.diagonal()
        return torch.cat([right, both.sum(dim=0) - right, both.sum(dim=1) - right])

    def value(sums: Tensor) -> float:
        right, wrong, missed = sums.reshape(3, classes)
        occurs = right + wrong + missed > 0
        scores = 2 * right / (2 * right + wrong + missed)
        return float(scores[occurs].mean())

    meaning = "F1, the harmonic mean of precision and recall, of each class that occurs, and their mean (macro)"
    return Metric("f1", "max", 3 * classes, count, value, meaning=meaning)


def majority(classes: int = 2) -> Metric:
    """Share of the most frequent class: the accuracy of always saying it, which a model has to exceed.

    Sums: how often each class occurs, [classes].
    """

    def count(output: Tensor, targets: Tensor) -> Tensor:
        actual = _classes(output, targets)[1].long()
        return torch.bincount(actual, minlength=classes)[:classes].double()

    meaning = "share of the most frequent class among all test examples: the accuracy of always saying this class"
    return Metric(
        "majority", "max", classes, count, lambda sums: _ratio(torch.stack([sums.max(), sums.sum()])), meaning=meaning
    )


def _token_losses(output: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of all counted positions together, and their number."""
    losses = at_positions(output, targets).double()
    return torch.stack([losses.sum(), (targets != IGNORED).sum().to(losses)])


# --- scores of two classes ------------------------------------------------------------------------------------------


def auc(cells: int = 200) -> Metric:
    """Area under the ROC curve: how often an example of class 1 has the higher score than one of class 0.

    Scores are the probabilities of class 1, counted for each class in `cells` equal cells from 0 to 1 [2 cells]. Those
    of one cell count as equal, so that the result is off by at most half of the share of pairs, one of each class, that
    share a cell.
    """
    meaning = (
        f"area under the ROC curve over all pairs of one example of each class, also of two sites; scores in {cells} "
        "equal cells, so that it is off by at most half of the share of pairs in one cell"
    )
    return Metric(
        "auc", "max", 2 * cells, lambda o, t: _histograms(o, t, cells), lambda sums: _auc(sums, cells), meaning=meaning
    )


def average_precision(cells: int = 200) -> Metric:
    """Average precision: the sum over thresholds of precision times the gain of recall.

    Counted as `auc` is; thresholds lie between the cells only.
    """
    return Metric(
        "average_precision",
        "max",
        2 * cells,
        lambda o, t: _histograms(o, t, cells),
        lambda sums: _average_precision(sums, cells),
        meaning=f"precision, averaged over the gains of recall at thresholds between {cells} equal cells of the score",
    )


def calibration_error(bins: int = 10) -> Metric:
    """Expected calibration error of the probability of class 1 (Naeini et al. 2015), called `ece`.

    `bins` equal bins from 0 to 1, each with its last edge: how far the mean probability of a bin is from its share of
    class 1, weighted by its examples. Sums: of each bin its examples, their probabilities and their labels, [3 bins].
    It has no other error from its bins: they define it.
    """

    def count(output: Tensor, targets: Tensor) -> Tensor:
        logits, labels = two_class_logits(output, targets)
        scores = torch.sigmoid(logits)
        each = (scores * bins).ceil().long().clamp(1, bins) - 1
        numbers = (None, scores, labels)
        return torch.cat([torch.bincount(each, weights=of, minlength=bins).double() for of in numbers])

    def value(sums: Tensor) -> float:
        number, scores, labels = sums.reshape(3, bins)
        return float((scores - labels).abs().sum() / number.sum()) if number.sum() else math.nan

    meaning = (
        f"expected calibration error: in {bins} equal bins of the probability of class 1, how far the mean probability "
        "is from the share of class 1, weighted by examples"
    )
    return Metric("ece", "min", 3 * bins, count, value, meaning=meaning)


def exact_auc(logits: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve of all pairs, equal scores counting half; nan without examples of both classes.

    Args:
        logits, labels: [n], of all examples together, as `two_class_logits` gives them.
    """
    values, cell = torch.unique(logits, return_inverse=True)
    cells_of_classes = [torch.bincount(cell[labels == label], minlength=len(values)).double() for label in (0, 1)]
    return math.nan if bool(logits.isnan().any()) else _auc(torch.cat(cells_of_classes), len(values))


def two_class_logits(output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Log odds of class 1 and labels 0 or 1 of n examples, float64 [n] each; raises UsageError if it is not about that.

    Args:
        output: [n], [n, 1] or [n, 2].
        targets: [n] or [n, 1].
    """
    output = one_tensor(output)
    if output.dim() == 2 and output.shape[1] == 2 and targets.dim() == 1:
        output = output[:, 1] - output[:, 0]
    logits, labels = paired(output, targets)
    if logits.shape[1] != 1:
        raise UsageError(f"this metric is for two classes, not for an output {list(output.shape)}", check="two-classes")
    labels = labels.squeeze(1)
    if not bool(((labels == 0) | (labels == 1)).all()):
        raise UsageError("a metric of two classes needs targets that are 0 or 1", check="binary-targets")
    return logits.squeeze(1).double(), labels.double()


def _histograms(output: Tensor, targets: Tensor, cells: int) -> Tensor:
    """Numbers of examples in each cell of the score, of class 0 and then of class 1."""
    logits, labels = two_class_logits(output, targets)
    cell = (torch.sigmoid(logits) * cells).long().clamp(0, cells - 1)
    return torch.bincount(cell + cells * labels.long(), minlength=2 * cells).double()


def _brier(output: Tensor, targets: Tensor) -> Tensor:
    logits, labels = two_class_logits(output, targets)
    return torch.stack([(torch.sigmoid(logits) - labels).square().sum(), _number(labels)])


def _auc(sums: Tensor, cells: int) -> float:
    negative, positive = sums.reshape(2, cells)
    pairs = negative.sum() * positive.sum()
    below = negative.cumsum(0) - negative
    return float((positive * (below + negative / 2)).sum() / pairs) if pairs else math.nan


def _average_precision(sums: Tensor, cells: int) -> float:
    negative, positive = sums.reshape(2, cells).flip(1)
    if not positive.sum():
        return math.nan
    right, chosen = positive.cumsum(0), (negative + positive).cumsum(0)
    return float((right / chosen.clamp(min=1) * positive).sum() / positive.sum())


# --- numbers --------------------------------------------------------------------------------------------------------


def _errors(output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Errors and targets of all values, float64 [m]."""
    values, actual = paired(one_tensor(output).double(), targets.double())
    return (values - actual).flatten(), actual.flatten()


def _squares(output: Tensor, targets: Tensor) -> Tensor:
    error, _ = _errors(output, targets)
    return torch.stack([error.square().sum(), _number(error)])


def _magnitudes(output: Tensor, targets: Tensor) -> Tensor:
    error, _ = _errors(output, targets)
    return torch.stack([error.abs().sum(), _number(error)])


def _variances(output: Tensor, targets: Tensor) -> Tensor:
    error, actual = _errors(output, targets)
    return torch.stack([_number(error), actual.sum(), actual.square().sum(), error.square().sum()])


def _number(values: Tensor) -> Tensor:
    return torch.tensor(float(values.numel()), dtype=torch.float64, device=values.device)


def _r2(sums: Tensor) -> float:
    number, total, squares, error = sums
    spread = squares - total.square() / number if number else number
    return float(1 - error / spread) if spread > 0 else math.nan


# --- survival -------------------------------------------------------------------------------------------------------


def _pairs(output: Tensor, targets: Tensor) -> Tensor:
    """Concordant, tied and comparable pairs of Harrell's index."""
    risk, time, event = survival(output, targets)
    pairs = torch.zeros(3, dtype=torch.float64, device=risk.device)
    events = torch.nonzero(event > 0).squeeze(1)
    for rows in torch.split(events, _ROWS):
        later = time[None, :] > time[rows][:, None]
        later |= (time[None, :] == time[rows][:, None]) & (event[None, :] == 0)
        lower = risk[None, :] < risk[rows][:, None]
        same = risk[None, :] == risk[rows][:, None]
        pairs += torch.stack([(later & lower).sum(), (later & same).sum(), later.sum()]).double()
    return pairs


def _c_index(sums: Tensor) -> float:
    concordant, tied, comparable = sums
    return float((concordant + tied / 2) / comparable) if comparable else math.nan


accuracy = Metric(
    *("accuracy", "max", 2, _right, _ratio),
    meaning="share of right predictions among all test examples (of texts among all tokens, of several labels among "
    "all labels)",
)
"""Share of right predictions: of classes, or of each label if output and targets have one shape."""

brier = Metric(
    *("brier", "min", 2, _brier, _ratio),
    meaning="Brier score: mean squared difference between the probability of class 1 and the label; always saying one "
    "half has 0.25",
)
"""Mean squared difference between the probability of class 1 and the label, 0 or 1 (Brier 1950)."""

perplexity = Metric(
    *("perplexity", "min", 2, _token_losses, lambda sums: _exp(_ratio(sums))),
    meaning="e to the mean cross entropy of all tokens of all test examples",
)
"""e to the mean cross entropy of all counted tokens: that of all sites' tokens, and no mean of sites' perplexities."""

rmse = Metric(
    *("rmse", "min", 2, _squares, lambda sums: math.sqrt(_ratio(sums))),
    meaning="root of the mean squared error over all test examples",
)
"""Root of the mean squared error."""

mae = Metric(*("mae", "min", 2, _magnitudes, _ratio), meaning="mean absolute error over all test examples")
"""Mean absolute error."""

r2 = Metric(
    *("r2", "max", 4, _variances, _r2),
    meaning="share of the variance of all test targets, around their common mean, that the model explains",
)
"""Share of the targets' variance that the model explains, around the mean of all sites' targets."""

c_index = Metric(
    *("c_index", "max", 3, _pairs, _c_index),
    over="set",
    meaning="Harrell's concordance index over pairs of examples of one site, the pairs of all sites added: how often "
    "the example of higher risk has its event first; examples of two sites are not compared",
)
"""Harrell's concordance index: of two examples of one site, how often that of higher risk has its event first.

A pair is comparable if the one with the earlier time had the event, or both have one time and one of them had it.
Pairs with equal risks count half. Examples of two sites are never compared, which would need both in one place.
"""
