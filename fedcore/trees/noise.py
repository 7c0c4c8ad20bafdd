"""How much one row changes in the sums of a level, so that noise can hide it; see docs/adr/0073-boosted-trees.md.

With noise a row's gradient is a whole number of at most 2^9 steps, and is clipped to that; its hessian has the steps
that keep the norm of both within the bound below. For a probability p, t = |g| and h = t (1 - t) give
g^2 + (2 h)^2 = t^2 (1 + 4 (1 - t)^2), which rises to 1 at t = 1. With classes XGBoost's hessian is 2 p (1 - p), and
t^2 (1 + 4 (1 - t)^2) is at most t, so that all other classes together, whose probabilities add up to t of the row's own
class, add at most t again: 2. With numbers the hessian is half of a largest gradient: 1 + 1/4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedcore.trees.histograms import Scale
from fedcore.trees.settings import LOGISTIC, SOFTPROB, SQUARED_ERROR, BoostingSettings

GRADIENT_BITS: Final = 9
"""After the point of a gradient of classes; the largest one of numbers is as many steps."""
_HESSIAN_BITS: Final = {LOGISTIC: 10, SOFTPROB: 9, SQUARED_ERROR: 8}
_NORM_SQUARED: Final = {LOGISTIC: 1.0, SOFTPROB: 2.0, SQUARED_ERROR: 1.25}


def hessian_bits(objective: str) -> int:
    """After the point of a hessian."""
    return _HESSIAN_BITS[objective]


def noised_scale(objective: str, largest: float) -> Scale:
    """The scale of sums with noise.

    Args:
        largest: gradient of a number, beyond which it is clipped; of no meaning for classes.
    """
    bits = GRADIENT_BITS
    if objective == SQUARED_ERROR:
        bits -= math.ceil(math.log2(largest))
    return Scale(gradient_bits=bits, hessian_bits=hessian_bits(objective))


def row_norm(settings: BoostingSettings) -> float:
    """Largest L2 norm of what one row adds to a cell of each class's tree, in steps; rounding adds half a step each."""
    rounding = math.sqrt(settings.groups / 2) + 1
    return math.sqrt(_NORM_SQUARED[settings.objective]) * 2**GRADIENT_BITS + rounding


def sensitivity(settings: BoostingSettings, cells: Mapping[int, int]) -> int:
    """Largest L2 norm by which one row changes the numbers of a question, in whole steps.

    Args:
        cells: in how many of a tree's part a row is, by the number of the class.
    """
    return math.ceil(math.sqrt(max(cells.values())) * row_norm(settings))


def clipped(
    g: NDArray[np.float32], h: NDArray[np.float32], scale: Scale
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Gradients and hessians in whole steps, within their bounds whatever the margins are; each as it came."""
    steps = []
    for values, bits, low in ((g, scale.gradient_bits, -1), (h, scale.hessian_bits, 0)):
        wide = np.ldexp(np.where(np.isnan(values), 0.0, values.astype(np.float64)), bits)
        steps.append(np.rint(np.clip(wide, low * 2.0**GRADIENT_BITS, 2.0**GRADIENT_BITS)).astype(np.int64))
    return steps[0], steps[1]
