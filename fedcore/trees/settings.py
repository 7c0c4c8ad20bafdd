"""What decides how trees grow, with XGBoost's names, defaults and meanings."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final

from fedcore.errors import ConfigurationError

LOGISTIC: Final = "binary:logistic"
SQUARED_ERROR: Final = "reg:squarederror"
SOFTPROB: Final = "multi:softprob"
OBJECTIVES: Final = (LOGISTIC, SQUARED_ERROR, SOFTPROB)
MOST_DEPTH: Final = 12
"""A tree is stored with room for all nodes of its depth: 8,191 of them."""
MOST_CLASSES: Final = 500
MOST_LEVELS: Final = 1000
"""Of a column of categories, each of which is a bin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostingSettings:
    """How trees grow. Raises ConfigurationError for a value that makes no sense.

    objective: "binary:logistic" for targets 0 and 1, "reg:squarederror", or "multi:softprob" for classes 0, 1 and so
        on.
    num_class: how many classes there are, each of which has its own tree in a round; 0 for other objectives.
    max_depth: of a tree; 1 is one split.
    learning_rate: what a leaf's weight is multiplied with (`eta`).
    reg_lambda: L2 penalty of the leaves' weights.
    gamma: the least gain of a split (`min_split_loss`).
    min_child_weight: the least sum of hessians on each side of a split.
    max_cat_to_onehot: a column of fewer categories splits off one of them, another one parts them in two sets.
    max_cat_threshold: most categories that are considered for the smaller set.
    subsample: which fraction of the rows a tree grows from, drawn for each.
    colsample_bytree: which fraction of the features a tree may split by, drawn for each.
    seed: of both draws.
    """

    objective: str = LOGISTIC
    num_class: int = 0
    max_depth: int = 6
    learning_rate: float = 0.3
    reg_lambda: float = 1.0
    gamma: float = 0.0
    min_child_weight: float = 1.0
    max_cat_to_onehot: int = 4
    max_cat_threshold: int = 64
    subsample: float = 1.0
    colsample_bytree: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_types()
        if self.objective not in OBJECTIVES:
            raise ConfigurationError(
                f"there is no objective {self.objective!r}, only {', '.join(OBJECTIVES)}", check="objective"
            )
        if self.objective == SOFTPROB and not 2 <= self.num_class <= MOST_CLASSES:
            raise ConfigurationError(
                f"num-class is {self.num_class}; {SOFTPROB} needs 2 to {MOST_CLASSES} classes", check="num-class"
            )
        if self.objective != SOFTPROB and self.num_class:
            raise ConfigurationError(
                f"num-class is {self.num_class}, and {self.objective} has no classes to count; leave it out, or set "
                f'objective = "{SOFTPROB}"',
                check="num-class",
            )
        if not 1 <= self.max_depth <= MOST_DEPTH:
            raise ConfigurationError(f"max-depth is {self.max_depth}; use 1 to {MOST_DEPTH}", check="max-depth")
        for name in ("learning_rate", "subsample", "colsample_bytree"):
            if not 0 < (value := getattr(self, name)) <= 1:
                raise ConfigurationError(f"{_key(name)} is {value:g}; use more than 0 and at most 1", check=_key(name))
        for name in ("reg_lambda", "gamma", "min_child_weight", "seed"):
            if not (math.isfinite(value := getattr(self, name)) and value >= 0):
                raise ConfigurationError(f"{_key(name)} is {value:g}; use 0 or more", check=_key(name))
        for name in ("max_cat_to_onehot", "max_cat_threshold"):
            if not 1 <= (value := getattr(self, name)) <= MOST_LEVELS:
                raise ConfigurationError(f"{_key(name)} is {value}; use 1 to {MOST_LEVELS}", check=_key(name))

    def _check_types(self) -> None:
        for one in fields(self):
            value, types = getattr(self, one.name), {"int": (int,), "float": (int, float), "str": (str,)}[str(one.type)]
            if isinstance(value, bool) or not isinstance(value, types):
                noun = {"int": "a whole number", "float": "a number", "str": "a text"}[str(one.type)]
                raise ConfigurationError(f"{_key(one.name)} is {value!r}; use {noun}", check=_key(one.name))

    @property
    def groups(self) -> int:
        """How many trees a round has: one for each class, if there are several."""
        return self.num_class or 1

    @property
    def least_rows(self) -> int:
        """The fewest rows that each node but the root holds: one row's hessian is at most 1, or less with classes."""
        largest = {LOGISTIC: 0.25, SOFTPROB: 0.5}.get(self.objective, 1.0)
        return max(1, math.ceil(self.min_child_weight / largest - 1e-6))

    @property
    def nodes(self) -> int:
        """How many nodes a tree of the largest depth has."""
        return (2 << self.max_depth) - 1


def _key(name: str) -> str:
    """Of the run config."""
    return name.replace("_", "-")
