"""Fields of 16, 21 or 32 bits in 64-bit words.

Field i lies in word i // k, k = floor(64 / b), at bit b * (i % k). With 16 and 32 bits that is how
a little-endian machine lays out arrays of these integers, so the words are viewed as such an array
and nothing is shifted.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("fedcore's codec needs a little-endian machine")

_VIEWS: dict[int, type[np.unsignedinteger[Any]]] = {16: np.uint16, 32: np.uint32}
_THIRD = 21


def field_dtype(field_bits: int) -> type[np.unsignedinteger[Any]]:
    """Dtype of unpacked fields: uint16 for 16 bits, uint32 for 21 and 32 bits."""
    return _VIEWS.get(field_bits, np.uint32)


def pack(words: NDArray[np.uint64], field_bits: int, start: int, fields: NDArray[Any]) -> None:
    """Write `fields` ([m], each below 2^field_bits) as the fields from `start` on.

    With 21 bits the fields are added into their words, which must hold zeros there.
    """
    if field_bits in _VIEWS:
        words.view(_VIEWS[field_bits])[start : start + fields.size] = fields
        return
    for offset, lane, part in _lanes(words, start, fields.size):
        shifted = fields[offset::3].astype(np.uint64) << np.uint64(lane * _THIRD)
        np.add(part, shifted, out=part)


def unpack(words: NDArray[np.uint64], field_bits: int, start: int, count: int) -> NDArray[Any]:
    """Fields [start, start + count) as uint16 or uint32; a view of the words where possible."""
    if field_bits in _VIEWS:
        return words.view(_VIEWS[field_bits])[start : start + count]
    fields = np.empty(count, np.uint32)
    mask = np.uint64((1 << _THIRD) - 1)
    for offset, lane, part in _lanes(words, start, count):
        fields[offset::3] = (part >> np.uint64(lane * _THIRD)) & mask
    return fields


def _lanes(words: NDArray[np.uint64], start: int, count: int) -> list[tuple[int, int, NDArray[np.uint64]]]:
    """For fields [start, start + count) of 21 bits: (first index, lane, words) of every third."""
    lanes = []
    for offset in range(min(3, count)):
        first, lane = divmod(start + offset, 3)
        length = -(-(count - offset) // 3)
        lanes.append((offset, lane, words[first : first + length]))
    return lanes


def padding(words: NDArray[np.uint64], field_bits: int, count: int) -> int:
    """The bits of packed `words` that belong to none of its `count` fields; zero when intact."""
    per_word = 64 // field_bits
    used = (count - 1) % per_word + 1 if count else 0
    stray = int(words[-1]) >> (used * field_bits) if used else 0
    if field_bits == _THIRD and words.size:
        stray |= int(np.bitwise_or.reduce(words) >> np.uint64(63))
    return stray
