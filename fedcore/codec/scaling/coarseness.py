"""Measures how much of a tensor's sum is rounding, and refuses a sum with too much of it.

Stochastic rounding moves each client's element by less than a step, with a variance of a quarter of a squared step at
most. In a sum of n clients' elements that is a standard error of sqrt(n) / 2 steps for each element that anybody
changed; one that nobody changed is exact. A tensor is too coarse if that error, as an L2 norm over its elements, is
more than a quarter of the norm of the sum itself, and more than its dtype would round off anyhow. An update of less
than a step fails that too: single steps are left of it, and the error is as large as they are. Of one that is smaller
still nothing may be left; then the clients' peak tells that there was one.

It is judged by the sum alone, which is known to the server by then, so it tells nothing. Tensors that are rotated
(`rotation`) are left out: their error is what the operator chose by `upload-fraction` or `field-bits`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedcore.state import ModelState, TensorSpec

MOST_ROUNDING = 1 / 4
"""The largest share of the norm of a tensor's update that may be rounding."""

_ROUNDOFF = {"F64": 2.0**-53, "F32": 2.0**-24, "F16": 2.0**-11, "BF16": 2.0**-8}
_BLOCK = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """By how much a part of a tensor changed in a sum.

    squares
        The sum of squares.
    elements
        How many changed.
    largest
        The largest magnitude, of a small tensor.
    """

    squares: float
    elements: int
    largest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorChange:
    """By how much one tensor changed in the sum of `contributors` clients, in steps.

    step: in units of the mean.
    peak: what no client's largest change exceeds, 0 if nobody changed it; always 0 of a small tensor.
    """

    spec: TensorSpec
    step: float
    contributors: int
    peak: float
    squares: float
    elements: int
    largest: float

    @classmethod
    def of(
        cls,
        spec: TensorSpec,
        parts: Iterable[Change],
        *,
        unit: float,
        fraction_bits: int,
        contributors: int,
        peak: float,
    ) -> TensorChange:
        """From the parts of the tensor, in whole fields.

        Args:
            unit: of a field; a step is a fraction of it.
            peak: in steps.
        """
        changes = list(parts)
        return cls(
            spec=spec,
            step=math.ldexp(unit, -fraction_bits),
            contributors=contributors,
            peak=peak,
            squares=math.ldexp(math.fsum(part.squares for part in changes), 2 * fraction_bits),
            elements=sum(part.elements for part in changes),
            largest=math.ldexp(max((part.largest for part in changes), default=0.0), fraction_bits),
        )

    @property
    def typical(self) -> float:
        """Root mean square of the sum over the elements that changed, in steps; 0 if none did."""
        return math.sqrt(self.squares / self.elements) if self.elements else 0.0

    @property
    def share(self) -> float:
        """The standard error of rounding over the norm of the sum; 1 if nothing is left of changes, 0 without any."""
        if not self.elements:
            return 1.0 if 0 < self.peak < least_typical(self.contributors) else 0.0
        return math.sqrt(self.contributors) / 2 / self.typical

    @property
    def error(self) -> float:
        """What rounding may have done to the mean, as an L2 norm; at most all of it, if nothing is left."""
        if not self.elements:
            return math.sqrt(self.spec.size) * self.contributors * self.peak * self.step
        return math.sqrt(self.contributors * self.elements) / 2 * self.step

    def is_coarse(self, base: ModelState) -> bool:
        """Whether rounding is too much of the update to pass it on.

        Args:
            base: the model before it.
        """
        if self.share <= MOST_ROUNDING:
            return False
        return self.error > _ROUNDOFF[self.spec.dtype] * _norm(base, self.spec)


def least_typical(contributors: int) -> float:
    """How many steps the sum of an element should come to, so that rounding is half as much as may be passed on."""
    return math.sqrt(contributors) / MOST_ROUNDING


def _norm(state: ModelState, spec: TensorSpec) -> float:
    """L2 norm of a tensor."""
    squares = []
    for start in range(0, spec.size, _BLOCK):
        values = state.float32(spec.name, start, min(start + _BLOCK, spec.size)).astype(float)
        squares.append(float(np.square(values, out=values).sum()))
    return math.sqrt(math.fsum(squares))
