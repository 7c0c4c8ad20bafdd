"""Values that each mode may choose for itself, and which of them it chooses: the best on validation data.

Validation data are a part of each site's training data. Test data are read by no trial.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fedcore.comparison.judging import JudgedBy
from fedcore.comparison.results import RunResult, Trial, number_of
from fedcore.errors import ConfigurationError
from fedcore.wire.base import Scalar

SHARE: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What `--tune` says.

    values: key -> what is tried; of several keys every combination.
    share: of each site's training examples that are validation data.
    """

    values: Mapping[str, tuple[Scalar, ...]]
    share: float = SHARE

    def __post_init__(self) -> None:
        for key, values in self.values.items():
            if len(values) < 2:
                raise ConfigurationError(
                    f"--tune {key}: name at least two values to choose from, as in {key}=0.01,0.1", check="one-value"
                )
        if not 0 < self.share < 1:
            raise ConfigurationError(f"--validation is a share between 0 and 1, not {self.share:g}", check="share")


def trial_of(result: RunResult, keys: Sequence[str], judged_by: JudgedBy) -> Trial:
    """A run on validation data as the report keeps it."""
    point = {key: result.point[key] for key in keys}
    if result.status == "failed":
        return Trial(point=point, status="failed", epsilon_spent=result.epsilon_spent)
    return Trial(point=point, value=number_of(result.metrics, judged_by.name), epsilon_spent=result.epsilon_spent)


def best_trial(trials: Sequence[Trial], judged_by: JudgedBy) -> Trial | None:
    """The first of the best; None if none has a number."""
    known = [trial for trial in trials if trial.value is not None and not math.isnan(trial.value)]
    sign = 1 if judged_by.better == "max" else -1
    return max(known, key=lambda trial: sign * (trial.value or 0.0), default=None)
