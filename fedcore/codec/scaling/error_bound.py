"""How far the mean that the codec decodes may be from the exact one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedcore.codec import Decoded, Encoding, MagnitudeStatistics
from fedcore.state import ModelState, TensorSpec

ROUNDOFF = {"F64": 2.0**-53, "F32": 2.0**-24, "F16": 2.0**-11 + 2.0**-24, "BF16": 2.0**-8 + 2.0**-24}
_BLOCK = 1 << 20
_HALF_SMALLEST = {"F64": 0.0, "F32": 2.0**-150, "F16": 2.0**-25, "BF16": 2.0**-134}


def error_bound(
    encoding: Encoding,
    *,
    survivors: int,
    examples: int,
    statistics: MagnitudeStatistics | None = None,
    base: ModelState | None = None,
    largest: float = math.inf,
    magnitudes: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Largest possible error of each decoded tensor against the exact weighted mean.

    With `base` the bound is on the elements of the decoded state, without it on the decoded mean
    delta. The terms, K = w_max / examples, s the scale, M <= survivors * s the sum of the clients'
    largest |w * delta| (from `magnitudes` by tensor where given, from the peaks of `statistics`, or from `largest`, a
    bound on each, which are far tighter):

    - stochastic rounding: less than one step s / L a client, so K * survivors * s / L;
    - the client's float32 arithmetic (difference, weight, product): 4 * 2^-24 * K * M;
    - storing base + mean: the dtype's unit roundoff times its magnitude.

    Where updates are rotated, all coordinates sent, the first two are about rotated coordinates: an element is a sum of
    R of them over sqrt(R), with signs, so up to sqrt(R) times as large; and the rotation, there and back, adds its own
    float32 arithmetic, one rounding for each of its log2(R) + 1 steps.

    Integer tensors are rounded to nearest: 1/2. A tensor of which something was clipped has no
    bound (infinity), and so has every one where an update was shrunk to clip_norm.
    """
    if base is not None and encoding.layout is not None:
        encoding.layout.check_same(base.layout, what="the global model")
    weight = encoding.settings.w_max / examples
    bounds = {spec.name: 0.5 for spec in encoding.integers}
    units = [unit for part in encoding.field_sections if part.sent_share for unit in part.units()]
    for index, spec in ((index, spec) for index, group in enumerate(encoding.groups) for spec in group.specs):
        magnitude = survivors * min(encoding.scales[index], largest)
        if statistics is not None and not encoding.groups[index].small:
            magnitude = min(magnitude, statistics.contributors * statistics.peaks[index])
        if magnitudes is not None:
            magnitude = magnitudes[spec.name]
        rows = max((unit.rows for unit in units if unit.index == index), default=1)
        steps = 2 * (math.log2(rows) + 1) if rows > 1 else 0
        magnitude *= math.sqrt(rows)
        rounding = survivors * encoding.step(index) * math.sqrt(rows)
        bound = weight * (rounding + (2.0**-22 + steps * 2.0**-24 * math.sqrt(rows)) * magnitude)
        if base is not None:
            result = _largest(base, spec) + weight * magnitude + bound
            bound += ROUNDOFF[spec.dtype] * result + _HALF_SMALLEST[spec.dtype]
        clipped = statistics is not None and (statistics.clipped[index] > 0 or statistics.shrunk > 0)
        bounds[spec.name] = math.inf if clipped else bound
    return bounds


def error_bound_of(
    encoding: Encoding,
    decoded: Decoded,
    base: ModelState,
    locals_: Sequence[ModelState],
    examples: Sequence[int],
) -> dict[str, float]:
    """`error_bound` of the state that a sum of these updates was decoded to; they are not rotated."""
    return error_bound(
        encoding,
        survivors=len(locals_),
        examples=sum(examples),
        statistics=decoded.statistics,
        base=base,
        magnitudes=_magnitudes_of(encoding, base, locals_, examples),
    )


def _magnitudes_of(
    encoding: Encoding, base: ModelState, locals_: Sequence[ModelState], examples: Sequence[int]
) -> dict[str, float]:
    """By tensor the sum of the clients' largest |w * delta|, of updates that are not rotated."""
    return {
        spec.name: sum(
            count / encoding.settings.w_max * _largest_change(base, local, spec.name)
            for local, count in zip(locals_, examples, strict=True)
        )
        for spec in encoding.floats
    }


def _largest_change(base: ModelState, local: ModelState, name: str) -> float:
    wide = base[name].dtype == np.float64
    old, new = ((one[name] if wide else one.float32(name)).astype(np.float64) for one in (base, local))
    return float(np.abs(new - old).max(initial=0.0)) * (1 + 2.0**-20)


def _largest(state: ModelState, spec: TensorSpec) -> float:
    """Largest absolute value of a tensor."""
    largest = 0.0
    for start in range(0, spec.size, _BLOCK):
        values = state.float32(spec.name, start, min(start + _BLOCK, spec.size))
        largest = max(largest, float(values.max()), -float(values.min()))
    state.release()
    return largest
