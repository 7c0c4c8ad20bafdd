"""A whole model: trees over shared bins, as arrays of a fixed layout, and as XGBoost's JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import ConfigurationError
from fedcore.trees.cuts import Cuts
from fedcore.trees.histograms import sigmoid, softmax
from fedcore.trees.settings import LOGISTIC, SOFTPROB, BoostingSettings
from fedcore.trees.tree import ABSENT, RegressionTree

_PREFIX: Final = "trees/"
_FACTS: Final = "trees/facts"
_BEST: Final = "trees/best"
_CATEGORIES: Final = "categories"
_FORMAT: Final = "fedcore/trees/v1"
_VERSION: Final = [3, 2, 0]
"""Of XGBoost, whose JSON this is."""
_EDGE: Final = np.float32(1e-6)


@dataclass(slots=True, eq=False)
class Ensemble:
    """Trees that add up, with room for a number of them.

    settings, cuts: that they grow by.
    names: of the features.
    base_score: the prediction without any tree: a probability, or a mean; 0 with several classes.
    room: how many trees its arrays have room for.
    trees: in the order of the rounds; with several classes each round has one for each.
    class_margins: with several classes what the margin of each begins with.
    levels: the names of each column's categories, none for a column of numbers.
    best: the number from 0 on of the round after which the loss on the test rows was lowest, if that decides when the
        run stops, and this loss; None if it does not, or there was no test yet.
    """

    settings: BoostingSettings
    cuts: Cuts
    names: tuple[str, ...]
    base_score: float
    room: int
    trees: list[RegressionTree] = field(default_factory=list)
    class_margins: tuple[float, ...] = ()
    levels: tuple[tuple[str, ...], ...] = ()
    best: tuple[int, float] | None = None

    def __post_init__(self) -> None:
        self.levels = self.levels or ((),) * len(self.names)

    @property
    def rounds(self) -> int:
        """How many rounds have their trees."""
        return len(self.trees) // self.settings.groups

    @property
    def base_margin(self) -> NDArray[np.float32]:
        """What the margin of every row begins with, [] or with several classes [classes]."""
        if self.settings.objective == SOFTPROB:
            return np.array(self.class_margins, np.float32)
        score = np.float32(self.base_score)
        if self.settings.objective == LOGISTIC:
            score = min(max(score, _EDGE), np.float32(1) - _EDGE)
            score = np.float32(-np.log(np.float32(1) / score - np.float32(1)))
        return np.array(score)

    def first_margins(self, rows: int) -> NDArray[np.float32]:
        """Of so many rows without any tree, float32 [rows] or with several classes [rows, classes]."""
        base = self.base_margin
        return np.broadcast_to(base, (rows, *base.shape)).copy()

    def add_margins(self, margins: NDArray[np.float32], x: NDArray[np.float32], first: int) -> None:
        """Add those of the trees from number `first` on, one after the other as XGBoost does.

        Args:
            margins: as `first_margins` has them; they change.
        """
        columns = margins.reshape(len(margins), self.settings.groups)
        for number, tree in enumerate(self.trees[first:], first):
            columns[:, number % self.settings.groups] += tree.margins(x)

    def margins(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Of each row, float32 [rows], or with several classes [rows, classes]."""
        margins = self.first_margins(len(x))
        self.add_margins(margins, x, 0)
        return margins

    def predict(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Probabilities of the target 1 or values of the target, float32 [rows], or of each class, [rows, classes]."""
        margins = self.margins(x)
        if self.settings.objective == SOFTPROB:
            return softmax(margins)
        return sigmoid(margins) if self.settings.objective == LOGISTIC else margins

    def at_best(self) -> Ensemble:
        """The model with the trees up to the best round alone."""
        if self.best is None:
            return self
        return replace(self, trees=self.trees[: (self.best[0] + 1) * self.settings.groups])

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The model as arrays whose names, dtypes and shapes stay the same while it grows.

        Trees that are not there yet have no nodes. `trees/facts` holds settings, names, levels and base scores as JSON.
        """
        empty = RegressionTree.empty(self.settings.nodes, self.cuts.most_levels)
        rows = [*self.trees, *[empty] * (self.room - len(self.trees))]
        arrays = {one.name: np.stack([getattr(tree, one.name) for tree in rows]) for one in fields(RegressionTree)}
        arrays["default_left"] = arrays["default_left"].astype(np.uint8)
        if not self.cuts.categories:
            del arrays[_CATEGORIES]
        facts = {
            "format": _FORMAT, "settings": asdict(self.settings), "names": self.names, "base_score": self.base_score,
            "class_margins": self.class_margins, "levels": self.levels,
        }  # fmt: skip
        text = json.dumps(facts, sort_keys=True).encode("ascii")
        return {
            **{_PREFIX + name: values for name, values in arrays.items()},
            _PREFIX + "cuts": self.cuts.values,
            _PREFIX + "starts": self.cuts.starts,
            _BEST: np.array(self.best or (-1, 0.0), np.float64),
            _FACTS: np.frombuffer(text, np.uint8),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """The inverse; raises ConfigurationError for arrays that are no such model."""
        try:
            facts = json.loads(arrays[_FACTS].astype(np.uint8).tobytes())
            if facts["format"] != _FORMAT:
                raise ValueError("another format")
            settings = BoostingSettings(**facts["settings"])
            names, base = tuple(map(str, facts["names"])), float(facts["base_score"])
            levels = tuple(tuple(map(str, part)) for part in facts["levels"])
            cuts = Cuts(
                np.asarray(arrays[_PREFIX + "cuts"], np.float32),
                np.asarray(arrays[_PREFIX + "starts"], np.int64),
                tuple(at for at, part in enumerate(levels) if part),
            )
            trees = _trees_of(arrays, settings, cuts)
            sizes = {cuts.features, len(names), len(levels)}
            margins = tuple(map(float, facts["class_margins"]))
            if len(sizes) > 1 or cuts.starts[-1] != cuts.bins or len(margins) != settings.num_class:
                raise ValueError("sizes that do not fit")
            best = int(arrays[_BEST][0]), float(arrays[_BEST][1])
        except (KeyError, ValueError, TypeError, IndexError, ConfigurationError) as error:
            raise ConfigurationError(f"the model is not one of boosted trees: {error}", check="no-trees") from None
        grown = [tree for tree in trees if tree.feature[0] != ABSENT]
        return cls(
            settings, cuts, names, base, len(trees), grown, margins, levels, best if 0 <= best[0] < len(grown) else None
        )

    def to_xgboost(self) -> dict[str, Any]:
        """The model as JSON that `xgboost.Booster.load_model` reads; no parameters of the training but the objective.

        Predictions are XGBoost's own from then on.
        """
        count, features, groups = len(self.trees), len(self.names), self.settings.groups
        model = {
            "cats": _categories_json(self.levels),
            "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(count)},
            "iteration_indptr": list(range(0, count + 1, groups)),
            "tree_info": [number % groups for number in range(count)],
            "trees": [tree.as_xgboost(number, features) for number, tree in enumerate(self.trees)],
        }
        scores = self.class_margins or (self.base_score,)
        classes = {"softmax_multiclass_param": {"num_class": str(self.settings.num_class)}}
        weights = {"reg_loss_param": {"scale_pos_weight": "1"}}
        return {
            "learner": {
                "attributes": self._best_json(),
                "feature_names": xgboost_names(self.names),
                "feature_types": ["c" if part else "float" for part in self.levels],
                "gradient_booster": {"model": model, "name": "gbtree"},
                "learner_model_param": {
                    "base_score": f"[{','.join(f'{float(np.float32(score)):.9E}' for score in scores)}]",
                    "boost_from_average": "0",
                    "num_class": str(self.settings.num_class),
                    "num_feature": str(features),
                    "num_target": "1",
                },
                "objective": {"name": self.settings.objective, **(classes if self.class_margins else weights)},
            },
            "version": _VERSION,
        }

    def with_xgboost(self, document: Mapping[str, Any]) -> Ensemble:
        """The model with the trees and base scores of XGBoost's JSON, of the same objective and features."""
        learner = document["learner"]
        scores = tuple(float(one) for one in json.loads(learner["learner_model_param"]["base_score"]))
        margins = scores if self.settings.objective == SOFTPROB else ()
        nodes, levels = self.settings.nodes, self.cuts.most_levels
        trees = learner["gradient_booster"]["model"]["trees"]
        return replace(
            self,
            trees=[RegressionTree.from_xgboost(tree, nodes, levels) for tree in trees],
            base_score=0.0 if margins else scores[0],
            class_margins=margins,
        )

    def _best_json(self) -> dict[str, str]:
        """As XGBoost's early stopping notes it."""
        return {} if self.best is None else {"best_iteration": str(self.best[0]), "best_score": repr(self.best[1])}


def _trees_of(arrays: Mapping[str, NDArray[Any]], settings: BoostingSettings, cuts: Cuts) -> list[RegressionTree]:
    """All that there is room for; raises KeyError or ValueError."""
    columns = {
        one.name: arrays[_PREFIX + one.name] for one in fields(RegressionTree) if one.name != _CATEGORIES
    }  # fmt: skip
    columns["default_left"] = columns["default_left"].astype(np.bool_)
    room, nodes = columns["feature"].shape
    empty = RegressionTree.empty(nodes, cuts.most_levels).categories
    columns[_CATEGORIES] = arrays[_PREFIX + _CATEGORIES] if cuts.categories else np.stack([empty] * room)
    shapes = {columns[one.name].shape for one in fields(RegressionTree) if one.name != _CATEGORIES}
    if nodes != settings.nodes or shapes != {(room, nodes)} or columns[_CATEGORIES].shape[1:] != empty.shape:
        raise ValueError("sizes that do not fit")
    return [RegressionTree(**{name: values[number] for name, values in columns.items()}) for number in range(room)]


def _categories_json(levels: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The names of all categories, as XGBoost keeps them to recode a data frame whose categories have another order."""
    if not any(levels):
        return {"enc": [], "feature_segments": [], "sorted_idx": []}
    texts = [[name.encode() for name in part] for part in levels]
    encoded = [
        {"offsets": np.cumsum([0, *map(len, part)]).tolist() if part else [], "values": list(b"".join(part))}
        for part in texts
    ]
    order = [at for part in texts for at in sorted(range(len(part)), key=part.__getitem__)]
    return {"enc": encoded, "feature_segments": np.cumsum([0, *map(len, levels)]).tolist(), "sorted_idx": order}


def class_margins(counts: Sequence[float] | NDArray[Any]) -> tuple[float, ...]:
    """What the margins of classes begin with if they have so many rows, as XGBoost's `multi:softprob` does."""
    shares = np.asarray(counts, np.float32) / np.float32(sum(counts))
    logs = np.log(shares + _EDGE)
    return tuple(float(one) for one in logs - logs.mean())


def xgboost_names(names: Sequence[str]) -> list[str]:
    """The names without what XGBoost takes in none: [ and ] become round brackets, < becomes "under"; all differ."""
    allowed: dict[str, None] = {}
    for name in names:
        own = name.replace("[", "(").replace("]", ")").replace("<", "under")
        while own in allowed:
            own += "_"
        allowed[own] = None
    return list(allowed)


def feature_names(names: Sequence[str] | None, features: int) -> tuple[str, ...]:
    """The names, or "x0", "x1" and so on if there are none."""
    return tuple(names) if names is not None else tuple(f"x{index}" for index in range(features))
