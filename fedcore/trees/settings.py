"""What decides how trees grow, with XGBoost's names, defaults and meanings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from fedcore.errors import ConfigurationError

LOGISTIC: Final = "binary:logistic"
SQUARED_ERROR: Final = "reg:squarederror"
OBJECTIVES: Final = (LOGISTIC, SQUARED_ERROR)
MOST_DEPTH: Final = 12
"""A tree is stored with room for all nodes of its depth: 8,191 of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostingSettings:
    """How trees grow. Raises ConfigurationError for a value that makes no sense.

    objective: "binary:logistic" for targets 0 and 1, or "reg:squarederror".
    max_depth: of a tree; 1 is one split.
    learning_rate: what a leaf's weight is multiplied with (`eta`).
    reg_lambda: L2 penalty of the leaves' weights.
    gamma: the least gain of a split (`min_split_loss`).
    min_child_weight: the least sum of hessians on each side of a split.
    """

    objective: str = LOGISTIC
    max_depth: int = 6
    learning_rate: float = 0.3
    reg_lambda: float = 1.0
    gamma: float = 0.0
    min_child_weight: float = 1.0

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ConfigurationError(
                f"there is no objective {self.objective!r}, only {' and '.join(OBJECTIVES)}", check="objective"
            )
        if not 1 <= self.max_depth <= MOST_DEPTH:
            raise ConfigurationError(f"max-depth is {self.max_depth}; use 1 to {MOST_DEPTH}", check="max-depth")
        if not 0 < self.learning_rate <= 1:
            raise ConfigurationError(
                f"learning-rate is {self.learning_rate:g}; use more than 0 and at most 1", check="learning-rate"
            )
        for name in ("reg_lambda", "gamma", "min_child_weight"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                key = name.replace("_", "-")
                raise ConfigurationError(f"{key} is {value:g}; use 0 or more", check=key)

    @property
    def nodes(self) -> int:
        """How many nodes a tree of the largest depth has."""
        return (2 << self.max_depth) - 1
