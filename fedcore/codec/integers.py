"""Integer and boolean tensors: exact differences times examples, one 64-bit word an element.

BatchNorm counts its batches in an int64, token tables index in int32, masks are boolean. Their
weighted mean is rounded to the nearest value of their own dtype, ties towards the global model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcore.codec.blocks import BLOCK_FIELDS
from fedcore.codec.encoding import Encoding
from fedcore.errors import EncodingError, PeerError
from fedcore.state import ModelState, StateSink, TensorSpec

_LARGEST = (1 << 63) - 1


def encode_integers(
    encoding: Encoding, words: NDArray[np.uint64], *, base: ModelState, local: ModelState, examples: int
) -> None:
    """Write (local - base) * examples into `words`, the section `integers`, modulo 2^64.

    Raises EncodingError that names the tensor when n_max such differences could overflow the sum.
    """
    limit = _LARGEST // encoding.n_max
    for spec, start, stop, place in _blocks(encoding):
        old = base[spec.name].reshape(-1)[start:stop]
        new = local[spec.name].reshape(-1)[start:stop]
        delta = _as_int64(new) - _as_int64(old)
        wrapped = ((new >= old) != (delta >= 0)).any()
        largest = max(int(delta.max()), -int(delta.min()))
        if wrapped or largest * examples > limit:
            raise EncodingError(
                f"integer tensor {spec.name!r} changed by too much to be summed in 64 bits; "
                "lower w-max or the cohort size, or keep the tensor out of the model's state",
                check="integer-overflow",
            )
        words[place : place + delta.size] = (delta * examples).view(np.uint64)


def decode_integers(
    encoding: Encoding, words: NDArray[np.uint64], *, base: ModelState, examples: int, sink: StateSink
) -> None:
    """Write base + mean to the sink. Raises PeerError when that is no value of the dtype."""
    for spec, start, stop, place in _blocks(encoding):
        old = base[spec.name].reshape(-1)[start:stop]
        delta = _nearest_quotient(words[place : place + old.size].view(np.int64), examples)
        mean = _as_int64(old) + delta
        new = mean.view(np.uint64) if spec.dtype == "U64" else mean.astype(spec.storage)
        intact = (_as_int64(new) == mean) & ((new >= old) == (delta >= 0))
        if not intact.all():
            raise PeerError(
                f"the mean of integer tensor {spec.name!r} does not fit {spec.dtype}: a client sent a malformed update",
                check="malformed-update",
            )
        sink.write(spec, start, new)


def _blocks(encoding: Encoding) -> Iterator[tuple[TensorSpec, int, int, int]]:
    """(tensor, start, stop, first word in the section) of every block of integer elements."""
    first = 0
    for spec in encoding.integers:
        for start in range(0, spec.size, BLOCK_FIELDS):
            yield spec, start, min(start + BLOCK_FIELDS, spec.size), first + start
        first += spec.size


def _as_int64(values: NDArray[Any]) -> NDArray[np.int64]:
    """Values as int64; those of uint64 modulo 2^64, so that differences still come out right."""
    return values.astype(np.int64, casting="unsafe")


def _nearest_quotient(sums: NDArray[np.int64], divisor: int) -> NDArray[np.int64]:
    """Quotients to the nearest whole number, ties towards zero, without floating point."""
    quotient, remainder = np.divmod(sums, divisor)
    # remainder is in [0, divisor); comparing with divisor - remainder cannot overflow.
    above = remainder > divisor - remainder
    tie = (remainder == divisor - remainder) & (sums < 0)
    rounded: NDArray[np.int64] = quotient + (above | tie)
    return rounded
