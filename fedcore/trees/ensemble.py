"""A whole model: trees over shared bins, as arrays of a fixed layout, and as XGBoost's JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import ConfigurationError
from fedcore.trees.cuts import Cuts
from fedcore.trees.histograms import sigmoid
from fedcore.trees.settings import LOGISTIC, BoostingSettings
from fedcore.trees.tree import ABSENT, RegressionTree

_PREFIX: Final = "trees/"
_FACTS: Final = "trees/facts"
_FORMAT: Final = "fedcore/trees/v1"
_VERSION: Final = [3, 2, 0]
"""Of XGBoost, whose JSON this is."""
_EDGE: Final = np.float32(1e-6)


@dataclass(slots=True, eq=False)
class Ensemble:
    """Trees that add up, with room for a number of them.

    settings, cuts: that they grow by.
    names: of the features.
    base_score: the prediction without any tree: a probability, or a mean.
    room: how many trees its arrays have room for.
    """

    settings: BoostingSettings
    cuts: Cuts
    names: tuple[str, ...]
    base_score: float
    room: int
    trees: list[RegressionTree] = field(default_factory=list)

    @property
    def base_margin(self) -> np.float32:
        """What the margin of every row begins with."""
        score = np.float32(self.base_score)
        if self.settings.objective != LOGISTIC:
            return score
        score = min(max(score, _EDGE), np.float32(1) - _EDGE)
        return np.float32(-np.log(np.float32(1) / score - np.float32(1)))

    def margins(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Of each row, float32 [rows], trees added up one after the other as XGBoost does."""
        margins = np.full(len(x), self.base_margin, np.float32)
        for tree in self.trees:
            margins += tree.margins(x)
        return margins

    def predict(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Probabilities of the target 1, or values of the target; float32 [rows]."""
        margins = self.margins(x)
        return sigmoid(margins) if self.settings.objective == LOGISTIC else margins

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The model as arrays whose names, dtypes and shapes stay the same while it grows.

        Trees that are not there yet have no nodes. `trees/facts` holds settings, names and base score as JSON.
        """
        empty = RegressionTree.empty(self.settings.nodes)
        rows = [*self.trees, *[empty] * (self.room - len(self.trees))]
        arrays = {one.name: np.stack([getattr(tree, one.name) for tree in rows]) for one in fields(RegressionTree)}
        arrays["default_left"] = arrays["default_left"].astype(np.uint8)
        facts = {
            "format": _FORMAT, "settings": asdict(self.settings), "names": self.names, "base_score": self.base_score
        }  # fmt: skip
        text = json.dumps(facts, sort_keys=True).encode("ascii")
        return {
            **{_PREFIX + name: values for name, values in arrays.items()},
            _PREFIX + "cuts": self.cuts.values,
            _PREFIX + "starts": self.cuts.starts,
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
            cuts = Cuts(
                np.asarray(arrays[_PREFIX + "cuts"], np.float32), np.asarray(arrays[_PREFIX + "starts"], np.int64)
            )
            columns = {one.name: arrays[_PREFIX + one.name] for one in fields(RegressionTree)}
            names, base = tuple(map(str, facts["names"])), float(facts["base_score"])
            room, nodes = columns["feature"].shape
            if nodes != settings.nodes or cuts.features != len(names) or cuts.starts[-1] != cuts.bins:
                raise ValueError("sizes that do not fit")
        except (KeyError, ValueError, TypeError, ConfigurationError) as error:
            raise ConfigurationError(f"the model is not one of boosted trees: {error}", check="no-trees") from None
        columns["default_left"] = columns["default_left"].astype(np.bool_)
        trees = [
            RegressionTree(**{name: values[number] for name, values in columns.items()})
            for number in range(room)
            if columns["feature"][number, 0] != ABSENT
        ]
        return cls(settings, cuts, names, base, room, trees)

    def to_xgboost(self) -> dict[str, Any]:
        """The model as JSON that `xgboost.Booster.load_model` reads; no parameters of the training but the objective.

        Predictions are XGBoost's own from then on.
        """
        count, features = len(self.trees), len(self.names)
        model = {
            "cats": {"enc": [], "feature_segments": [], "sorted_idx": []},
            "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(count)},
            "iteration_indptr": list(range(count + 1)),
            "tree_info": [0] * count,
            "trees": [tree.as_xgboost(number, features) for number, tree in enumerate(self.trees)],
        }
        return {
            "learner": {
                "attributes": {},
                "feature_names": list(self.names),
                "feature_types": ["float"] * features,
                "gradient_booster": {"model": model, "name": "gbtree"},
                "learner_model_param": {
                    "base_score": f"[{float(np.float32(self.base_score)):.9E}]",
                    "boost_from_average": "0",
                    "num_class": "0",
                    "num_feature": str(features),
                    "num_target": "1",
                },
                "objective": {"name": self.settings.objective, "reg_loss_param": {"scale_pos_weight": "1"}},
            },
            "version": _VERSION,
        }


def feature_names(names: Sequence[str] | None, features: int) -> tuple[str, ...]:
    """The names, or "x0", "x1" and so on if there are none."""
    return tuple(names) if names is not None else tuple(f"x{index}" for index in range(features))
