"""A model as its 16-bit difference to one that its receiver has, and the model that both then have, bit for bit.

The sender wants to send `model`, and its receivers have `base`. Of every F32 tensor they get bfloat16(model - base),
element by element, and all of them train from *sent* = base + that difference, added in float32. Tensors of other
dtypes go as they are, and so does one of which an element of the difference is not finite.

Sender and receivers make `sent` by the same additions in IEEE 754 binary32, and write it to a file whose bytes are a
function of its values; so its SHA-256 is known before anybody has it. For every element

    |sent - model| <= (2^-8 + 2^-22) |model - base| + 2^-24 |sent| + 2^-134

of which 2^-8 is the unit roundoff of bfloat16, whose significand has 8 bits, 2^-134 the half of its smallest step, and
the rest that of the float32 subtraction and of the sum. The next difference is taken from the next *model* to this
*sent*, so the error of one never enters the next: it is what MCM calls a preserved central model (Philippenko and
Dieuleveut 2021, "Preserved central model for faster bidirectional compression in distributed settings", section 2).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import PeerError, UsageError
from fedcore.state.files import FileSink
from fedcore.state.layout import Layout, TensorSpec, bfloat16_bits
from fedcore.state.model import MemorySink, ModelState, StateSink

_DIFFERENCE: Final = "BF16"
_BLOCK: Final = 1 << 18
"""Elements at a time: 1 MiB of float32 stays in a core's cache from the subtraction to the sum."""


def can_differ(base: ModelState, model: ModelState) -> bool:
    """Whether a difference saves anything: the same tensors, one of them F32."""
    return base.layout == model.layout and any(spec.dtype == "F32" for spec in model.layout.specs)


def difference_bytes(layout: Layout) -> int:
    """Bytes of the values in a difference between models of this layout, if all of it is finite."""
    return sum(spec.nbytes // 2 if spec.dtype == "F32" else spec.nbytes for spec in layout.specs)


def write_difference(base: ModelState, model: ModelState, difference: Path, sent: Path) -> None:
    """Write the difference of `model` to `base`, and the model that it makes; both temporary, so not durable.

    Raises UsageError unless `can_differ`; StorageFull.
    """
    layout = _difference_layout(base, model)
    with ExitStack() as stack:
        parts = stack.enter_context(FileSink(difference, layout, durable=False))
        sent_file = stack.enter_context(FileSink(sent, model.layout, durable=False))
        for spec, start, bits, values in _rounded(base, model, layout):
            if bits is not None:
                parts.write(TensorSpec(name=spec.name, dtype=_DIFFERENCE, shape=spec.shape), start, bits)
            else:
                parts.write(spec, start, values)
            sent_file.write(spec, start, values)


def rounded(base: ModelState, model: ModelState) -> ModelState:
    """The model that receivers of a difference have, in memory."""
    sink = MemorySink(model.layout)
    for spec, start, _, values in _rounded(base, model, _difference_layout(base, model)):
        sink.write(spec, start, values)
    return sink.state()


def add_difference(base: ModelState, difference: ModelState, path: Path) -> None:
    """Write the model that a difference to `base` makes to `path`. Raises PeerError if it is no such difference."""
    expected = {spec.name: spec for spec in base.layout.specs}
    changes = {spec.name: spec for spec in difference.layout.specs}
    if changes.keys() != expected.keys() or any(not _fits(expected[name], spec) for name, spec in changes.items()):
        raise PeerError("the difference is not one between models of this layout")
    with FileSink(path, base.layout, durable=False) as sink:
        for spec in base.layout.specs:
            _add_tensor(base, difference, spec, changes[spec.name], sink)


def _fits(base: TensorSpec, change: TensorSpec) -> bool:
    return change.shape == base.shape and (
        change.dtype == base.dtype or (change.dtype, base.dtype) == (_DIFFERENCE, "F32")
    )


def _add_tensor(
    base: ModelState, difference: ModelState, spec: TensorSpec, change: TensorSpec, sink: StateSink
) -> None:
    base_values, came = base[spec.name].reshape(-1), difference[spec.name].reshape(-1)
    for start in range(0, spec.size, _BLOCK):
        block = came[start : start + _BLOCK]
        if change.dtype == spec.dtype:
            sink.write(spec, start, block)
        else:
            sink.write(spec, start, _sum(base_values[start : start + _BLOCK], block))
        base.release()
        difference.release()


def _difference_layout(base: ModelState, model: ModelState) -> Layout:
    """F32 tensors as bfloat16, but those of which a difference is not finite."""
    if not can_differ(base, model):
        raise UsageError("there is no difference between models of two layouts, or without float32 tensors")
    specs = []
    for spec in model.layout.specs:
        small = spec.dtype == "F32" and _is_finite(base[spec.name].reshape(-1), model[spec.name].reshape(-1))
        specs.append(TensorSpec(name=spec.name, dtype=_DIFFERENCE, shape=spec.shape) if small else spec)
    return Layout(specs=tuple(specs))


def _is_finite(base: NDArray[np.float32], model: NDArray[np.float32]) -> bool:
    blocks = range(0, model.size, _BLOCK)
    return all(_all_finite(_bits(base[at : at + _BLOCK], model[at : at + _BLOCK])) for at in blocks)


def _all_finite(bits: NDArray[np.uint16]) -> bool:
    return not np.any((bits & np.uint16(0x7F80)) == 0x7F80)


def _rounded(
    base: ModelState, model: ModelState, layout: Layout
) -> Iterator[tuple[TensorSpec, int, NDArray[np.uint16] | None, NDArray[np.generic]]]:
    """(tensor, position, its difference or None, its values as sent), block by block."""
    dtypes = {spec.name: spec.dtype for spec in layout.specs}
    for spec in model.layout.specs:
        base_values, new = base[spec.name].reshape(-1), model[spec.name].reshape(-1)
        is_small = dtypes[spec.name] != spec.dtype
        for start in range(0, spec.size, _BLOCK):
            values = new[start : start + _BLOCK]
            if not is_small:
                yield spec, start, None, values
                continue
            bits = _bits(base_values[start : start + _BLOCK], values)
            yield spec, start, bits, _sum(base_values[start : start + _BLOCK], bits)


def _bits(base: NDArray[np.float32], model: NDArray[np.float32]) -> NDArray[np.uint16]:
    with np.errstate(over="ignore", invalid="ignore"):
        return bfloat16_bits(np.subtract(model, base))


def _sum(base: NDArray[np.float32], bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The model as sent: the one addition that both sides make."""
    widened = np.left_shift(bits, 16, dtype=np.uint32).view(np.float32)
    with np.errstate(over="ignore"):
        return np.add(base, widened, out=widened)
