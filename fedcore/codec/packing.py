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
_SHIFT = np.uint64(_THIRD)


def field_dtype(field_bits: int) -> type[np.unsignedinteger[Any]]:
    """Dtype of unpacked fields: uint16 for 16 bits, uint32 for 21 and 32 bits."""
    return _VIEWS.get(field_bits, np.uint32)


def field_view(words: NDArray[np.uint64], field_bits: int, start: int, count: int) -> NDArray[Any] | None:
    """Fields [start, start + count) in place, as an array [count]; None for a width that no dtype has."""
    dtype = _VIEWS.get(field_bits)
    return None if dtype is None else words.view(dtype)[start : start + count]


def pack(words: NDArray[np.uint64], field_bits: int, start: int, fields: NDArray[Any]) -> None:
    """Write `fields` ([m], each below 2^field_bits) as the fields from `start` on, in ascending order.

    With 21 bits, the first field of a word clears the rest of it.
    """
    view = field_view(words, field_bits, start, fields.size)
    if view is not None:
        view[:] = fields
        return
    # Up to two fields complete a word that is begun, up to two begin one at the end.
    head = min(-start % 3, fields.size)
    body = (fields.size - head) // 3 * 3
    _pack_few(words, start, fields[:head])
    first = (start + head) // 3
    _pack_triples(words[first : first + body // 3], fields[head : head + body])
    _pack_few(words, start + head + body, fields[head + body :])


def _pack_triples(words: NDArray[np.uint64], fields: NDArray[Any]) -> None:
    """Three 21-bit fields to each word."""
    np.left_shift(fields[2::3], _SHIFT, out=words)
    np.bitwise_or(words, fields[1::3], out=words)
    np.left_shift(words, _SHIFT, out=words)
    np.bitwise_or(words, fields[0::3], out=words)


def _pack_few(words: NDArray[np.uint64], start: int, fields: NDArray[Any]) -> None:
    """21-bit fields one by one."""
    for place, field in enumerate(fields.tolist(), start):
        word, lane = divmod(place, 3)
        begun = int(words[word]) if lane else 0
        words[word] = begun | field << (lane * _THIRD)


def unpack(words: NDArray[np.uint64], field_bits: int, start: int, count: int) -> NDArray[Any]:
    """Fields [start, start + count) as uint16 or uint32; a view of the words where possible."""
    view = field_view(words, field_bits, start, count)
    if view is not None:
        return view
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
