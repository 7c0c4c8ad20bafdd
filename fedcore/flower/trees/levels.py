"""What the server asks of a level: as many queries as its numbers need, each over the same clients and rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from numpy.typing import NDArray

from fedcore.errors import AppError
from fedcore.flower.trees.budget import LevelPlan, RowBudget
from fedcore.flower.trees.question import GROW, Question, TreeQuestion
from fedcore.flower.trees.sites import Sites
from fedcore.run.encoding_plan import QUERY_VALUES
from fedcore.trees import Ensemble, RegressionTree, Scale, TreeGrowth

_COUNT_NUMBERS: Final = 2
MOST: Final = QUERY_VALUES - _COUNT_NUMBERS
"""Numbers of a query about trees."""

Levels = dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]]
"""By the number of the class: sums of all rows [2], if the root was asked for, and histograms [nodes, 2, bins]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelQueries:
    """Asks the sites for levels.

    budget: the noise of every sum; None for none.
    """

    sum_only = True

    sites: Sites
    scale: Scale
    budget: RowBudget | None = None

    def ask(
        self,
        ensemble: Ensemble,
        server_round: int,
        arrays: ArrayRecord,
        growths: Mapping[int, TreeGrowth | None],
        features: Sequence[NDArray[np.int64]],
    ) -> Levels:
        """A level of each of these trees, None for one without a root; raises AppError, and BudgetSpent.

        Args:
            arrays: the model, as the sites get it.
            features: of each class's tree.
        """
        empty = RegressionTree.empty(ensemble.settings.nodes, ensemble.cuts.most_levels)
        trees = {
            group: TreeQuestion(
                nodes=np.array([0] if growth is None else growth.questions, np.int64),
                features=features[group],
                tree=empty if growth is None else growth.tree,
            )
            for group, growth in growths.items()
        }
        level = Question(trees=trees, scale=self.scale, start=0, stop=0)
        if self.budget is None:
            numbers = [self._sums(one, ensemble, server_round, arrays) for one in _in_turn(level, ensemble)]
            return _levels(level, ensemble, np.concatenate(numbers))
        parts = [
            _levels(one, ensemble, self._sums(one, ensemble, server_round, arrays))
            for one in _by_features(level, ensemble, self.budget)
        ]
        return {
            group: (
                np.rint(np.mean([part[group][0] for part in parts], axis=0)).astype(np.int64),
                np.concatenate([part[group][1] for part in parts], axis=2),
            )
            for group in trees
        }

    def _sums(
        self, question: Question, ensemble: Ensemble, server_round: int, arrays: ArrayRecord
    ) -> NDArray[np.int64]:
        config = question.as_config(ensemble)
        config["server-round"] = server_round
        content = RecordDict({"arrays": arrays, "config": config})

        def spend() -> None:
            if self.budget is not None and question.noise is not None:
                self.budget.spend(question.noise)

        numbers = self.sites.sums(GROW, content, str(server_round), before=spend)[0]
        if len(numbers) != question.stop - question.start:
            raise AppError("the clients answered with another number of sums than they were asked for")
        return np.rint(numbers).astype(np.int64)


def _in_turn(level: Question, ensemble: Ensemble) -> Iterator[Question]:
    """The numbers one after the other, as many in each query as it has room for."""
    count = sum(level.sizes(ensemble))
    for start in range(0, count, MOST):
        yield replace(level, start=start, stop=min(start + MOST, count))


def _by_features(level: Question, ensemble: Ensemble, budget: RowBudget) -> Iterator[Question]:
    """Some features of all nodes in each query, so that what one row changes in all of them adds up exactly."""
    nodes = sum(len(one.nodes) for one in level.trees.values())
    first = next(iter(level.trees.values()))
    count, root = len(first.features), bool(0 in first.nodes)
    widest = int(np.diff(ensemble.cuts.starts).max())
    start = 0
    for size in LevelPlan.of(count, widest, nodes, MOST, root=root).features:
        trees = {group: replace(one, features=one.features[start : start + size]) for group, one in level.trees.items()}
        part = replace(level, trees=trees)
        numbers = sum(part.sizes(ensemble))
        yield replace(part, stop=numbers, noise=budget.noise(dict.fromkeys(trees, size + root), numbers))
        start += size


def _levels(question: Question, ensemble: Ensemble, numbers: NDArray[np.int64]) -> Levels:
    levels: Levels = {}
    pieces = np.split(numbers, np.cumsum(question.sizes(ensemble))[:-1])
    for (group, one), piece in zip(question.trees.items(), pieces, strict=True):
        first = 2 if 0 in one.nodes else 0
        levels[group] = piece[:first], piece[first:].reshape(len(one.nodes), 2, -1)
    return levels


def deviation_of_sum(budget: RowBudget, clients: int) -> float:
    """Of the noise in a sum of so many clients' shares, in steps of a gradient."""
    return budget.deviation * math.sqrt(clients / budget.shares)
