"""Validation data of one site: a part of its training data that a comparison sets apart to choose values by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcore.data.types import Integers, Split
from fedcore.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class PickedExamples:
    """Some examples of a data set, which still reads them itself."""

    data: Any
    rows: Integers

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.data[int(self.rows[index])]


def set_apart(training: Any, count: int, share: float, *, seed: int) -> tuple[Any, Any]:
    """Divide training data into what is trained on and validation data, each in the order that the examples had.

    Raises ConfigurationError for data whose examples cannot be picked one by one, and for fewer than two.

    Args:
        training: a `Split`, or a data set with `__getitem__`.
        count: of its examples.
        share: of the examples; each part has at least one.
        seed: decides which.
    """
    if count < 2 or not (isinstance(training, Split) or hasattr(training, "__getitem__")):
        what = f"{count} training examples" if count < 2 else f"a {type(training).__name__}, which has no rows to pick"
        raise ConfigurationError(f"no validation data can be set apart from {what}", check="no-validation")
    order = np.random.default_rng(seed).permutation(count)
    apart = min(count - 1, max(1, round(share * count)))
    rest, validation = np.sort(order[apart:]), np.sort(order[:apart])
    if isinstance(training, Split):
        return training.take(rest), training.take(validation)
    return PickedExamples(training, rest), PickedExamples(training, validation)
