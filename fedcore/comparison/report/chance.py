"""What a model reaches that looks at no example: the majority class, and chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from fedcore.comparison.judging import ACCURACY
from fedcore.comparison.report.document import Comparison, SiteSplit

_HALF: Final = ("auc", "c_index")
"""Metrics of pairs: without knowledge either order is as likely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChanceLevel:
    """Accuracies, from 0 to 1, of models that look at no example.

    classes: how many labels the examples of all sites have.
    uniform: of a model that draws each class with the same probability.
    label: the majority class, the most frequent label of all training examples.
    majority: of a model that always predicts it, on the test examples of all sites.
    own: of a model that at each site predicts the majority class of that site's training examples, on the site's own
        test examples, mean over the sites.
    tested: whether the labels of the test examples are known; otherwise `majority` and `own` are shares of the training
        examples.
    """

    classes: int
    uniform: float
    label: str
    majority: float
    own: float
    tested: bool

    @classmethod
    def of(cls, comparison: Comparison) -> ChanceLevel | None:
        """Of the first seed's split; None if examples have no labels, or the reports merged are of several apps."""
        split = [site for site in comparison.split if site.labels]
        if not split or len({source.app for source in comparison.sources}) > 1:
            return None
        tested = all(site.test_labels is not None for site in split)

        def examples(site: SiteSplit) -> Mapping[str, int]:
            return (site.test_labels if tested else site.labels) or {}

        training, test = _added(split, lambda site: site.labels or {}), _added(split, examples)
        label = _most_frequent(training)
        own = [_share(examples(site), _most_frequent(site.labels or {})) for site in split if examples(site)]
        classes = len(training | test)
        return cls(
            classes=classes,
            uniform=1 / classes,
            label=label,
            majority=_share(test, label),
            own=sum(own) / max(1, len(own)),
            tested=tested,
        )


def chance_of(metric: str, comparison: Comparison) -> float | None:
    """What a metric is without any learning on the test examples of all sites; None for metrics without such a level.

    Args:
        metric: its name. The accuracy is that of the majority class.
    """
    if metric in _HALF:
        return 0.5
    level = ChanceLevel.of(comparison) if metric == ACCURACY else None
    return None if level is None else level.majority


def _added(split: list[SiteSplit], of: Callable[[SiteSplit], Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for site in split:
        total.update(of(site))
    return total


def _most_frequent(labels: Mapping[str, int]) -> str:
    """Of several, the smallest text, so that the answer does not depend on an order."""
    return min(labels, key=lambda label: (-labels[label], label))


def _share(labels: Mapping[str, int], label: str) -> float:
    return labels.get(label, 0) / max(1, sum(labels.values()))
