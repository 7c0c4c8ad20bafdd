"""Values to fields of 8, 10, 12, 16, 21, 32 or 64 bits, by stochastic rounding, and such fields in 64-bit words.

Rounding gives floor(x) or floor(x) + 1, the latter with probability x - floor(x): the expectation is x, so that
rounding errors average out over clients and rounds instead of building up. The random bits come from ChaCha20 (RFC
8439), because a server that could predict them would learn more about x than the rounded value says. All kernels round
x to a fixed-point number with 16 bits after the point, add 16 random bits and shift them out: floor(x + r / 2^16), r
uniform, is what is wanted, and whole numbers stay as they are. (64-bit fields hold more than the 53 bits of a float64:
there the whole part is taken off before, and an x beyond 2^36 has fewer than 16 bits after the point, or none.)

Field i lies in word i // k, k = floor(64 / b), at bit b * (i % k). But for 10, 12 and 21 bits that is how a machine
that is little-endian lays out arrays of these integers: the words are viewed as such an array, and nothing is shifted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from fedcore.codec.blocks import BLOCK_FIELDS
from fedcore.codec.encoding import Encoding
from fedcore.errors import EncodingError, PeerError
from fedcore.state import ModelState, StateSink, TensorSpec

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("fedcore's codec needs a little-endian machine")

_VIEWS: dict[int, type[np.unsignedinteger[Any]]] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def field_dtype(field_bits: int) -> type[np.unsignedinteger[Any]]:
    """Dtype of unpacked fields: the smallest of uint8, uint16, uint32 and uint64 that holds them."""
    return _VIEWS.get(field_bits, np.uint16 if field_bits < 16 else np.uint32)


def field_view(words: NDArray[np.uint64], field_bits: int, start: int, count: int) -> NDArray[Any] | None:
    """Fields [start, start + count) in place, as an array [count]; None for a width that no dtype has."""
    dtype = _VIEWS.get(field_bits)
    return None if dtype is None else words.view(dtype)[start : start + count]


def pack(words: NDArray[np.uint64], field_bits: int, start: int, fields: NDArray[Any]) -> None:
    """Write `fields` ([m], each below 2^field_bits) as the fields from `start` on, in ascending order.

    With 10, 12 and 21 bits, the first field of a word clears the rest of it.
    """
    view = field_view(words, field_bits, start, fields.size)
    if view is not None:
        view[:] = fields
        return
    # A few fields complete a word that has been started, and a few start one at the end.
    per_word = 64 // field_bits
    head = min(-start % per_word, fields.size)
    body = (fields.size - head) // per_word * per_word
    _pack_few(words, field_bits, start, fields[:head])
    first = (start + head) // per_word
    _pack_lanes(words[first : first + body // per_word], field_bits, fields[head : head + body])
    _pack_few(words, field_bits, start + head + body, fields[head + body :])


def _pack_lanes(words: NDArray[np.uint64], field_bits: int, fields: NDArray[Any]) -> None:
    """As many fields to each word as it holds."""
    per_word, shift = 64 // field_bits, np.uint64(field_bits)
    np.copyto(words, fields[per_word - 1 :: per_word])
    for lane in reversed(range(per_word - 1)):
        np.left_shift(words, shift, out=words)
        np.bitwise_or(words, fields[lane::per_word], out=words)


def _pack_few(words: NDArray[np.uint64], field_bits: int, start: int, fields: NDArray[Any]) -> None:
    """Fields one by one."""
    for position, field in enumerate(fields.tolist(), start):
        word, lane = divmod(position, 64 // field_bits)
        begun = int(words[word]) if lane else 0
        words[word] = begun | field << (lane * field_bits)


def unpack(words: NDArray[np.uint64], field_bits: int, start: int, count: int) -> NDArray[Any]:
    """Fields [start, start + count) as the dtype of the width; a view of the words if possible."""
    view = field_view(words, field_bits, start, count)
    if view is not None:
        return view
    fields = np.empty(count, field_dtype(field_bits))
    mask, per_word = np.uint64((1 << field_bits) - 1), 64 // field_bits
    for offset in range(min(per_word, count)):
        first, lane = divmod(start + offset, per_word)
        length = -(-(count - offset) // per_word)
        fields[offset::per_word] = (words[first : first + length] >> np.uint64(lane * field_bits)) & mask
    return fields


def padding(words: NDArray[np.uint64], field_bits: int, count: int) -> int:
    """The bits of packed `words` that belong to none of its `count` fields; zero when intact."""
    per_word = 64 // field_bits
    used = (count - 1) % per_word + 1 if count else 0
    stray = int(words[-1]) >> (used * field_bits) if used else 0
    if 64 % field_bits and words.size:
        stray |= int(np.bitwise_or.reduce(words) >> np.uint64(per_word * field_bits))
    return stray


KEY_BYTES = 32
_BLUR = 2.0**-25
"""By how much of itself a value that has a fraction is moved at random: by half of that at most, either way."""
_RANDOM_BITS = 16
_ONE = 1 << _RANDOM_BITS
_BINADE = 2.0 ** (52 - _RANDOM_BITS)
"""From here to its double, a float64 has 16 bits after the point: the mantissa is a fixed-point number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSummary:
    """What happened to one block: its largest |x| before clipping, and how many were clipped."""

    largest: float
    clipped: int


class StochasticRounder:
    """Rounds blocks of at most BLOCK_FIELDS values to fields, for one encoding.

    `levels` is L; `randomness(32)` gives the key of a keystream that is used for nothing else. The
    keystream is cut into chunks, whose numbers are the nonces; `begin` moves to the start of one,
    and every value takes the next two bytes. No chunk may be started twice.

    Fields are of `field_dtype`. Arithmetic is float32 for up to 16 bits, whose
    levels float32 represents exactly, and float64 for more. 16 random bits decide each value: the
    probability is right to 2^-17, so the expectation is right to 2^-17 of a step.
    """

    def __init__(self, *, field_bits: int, levels: int, randomness: Callable[[int], bytes]) -> None:
        self._levels = levels
        self._field_bits = field_bits
        self._key = randomness(KEY_BYTES)
        narrow = self._field_bits <= 16
        self._scaled = np.empty(BLOCK_FIELDS, np.float32 if narrow else np.float64)
        self._fixed = np.empty(BLOCK_FIELDS, np.int32) if narrow else self._scaled.view(np.int64)
        self._steps = np.empty(BLOCK_FIELDS if self._field_bits == 64 else 0, np.float64)
        self._fields = np.empty(BLOCK_FIELDS, field_dtype(self._field_bits))
        self._bits = np.empty(BLOCK_FIELDS, np.uint16)
        self._zeros = bytes(self._bits.nbytes)
        self._stream = Cipher(algorithms.ChaCha20(self._key, _nonce(0)), mode=None).encryptor()

    def for_thread(self) -> Self:
        """Another rounder with the same key and buffers of its own; let each `begin` chunks of its own."""
        return type(self)(field_bits=self._field_bits, levels=self._levels, randomness=lambda _: self._key)

    def begin(self, chunk: int) -> None:
        """Go to the start of a chunk of the keystream, which nobody has used before."""
        self._stream.reset_nonce(_nonce(chunk))

    def round(
        self,
        values: NDArray[np.float32],
        factor: float,
        *,
        largest: float | None = None,
        out: NDArray[Any] | None = None,
    ) -> tuple[NDArray[Any], BlockSummary]:
        """Fields of values * factor, clipped to [-L, L] and offset by L.

        `values` ([m], finite, m <= BLOCK_FIELDS) is not changed. `largest` is their largest magnitude,
        if the caller knows it. The fields are written to `out` ([m]) if it is given, else
        they are valid until the next call.
        """
        size = largest_magnitude(values) if largest is None else largest
        fields = self._fields[: values.size] if out is None else out
        round_block = self._narrow if self._field_bits <= 16 else self._widest if self._field_bits == 64 else self._wide
        clipped = round_block(values, factor, size, fields)
        return fields, BlockSummary(largest=size * factor, clipped=clipped)

    def _narrow(self, values: NDArray[np.float32], factor: float, size: float, fields: NDArray[Any]) -> int:
        """float32, then 16 + 16 bits in an int32; returns the number of clipped values."""
        count = values.size
        scaled, fixed = self._scaled[:count], self._fixed[:count]
        unit = np.float32(factor * _ONE)
        with np.errstate(over="ignore"):
            np.multiply(values, unit, out=scaled)
            clipped = _clip(scaled, self._levels * _ONE, np.float32(size) * unit)
        np.rint(scaled, out=fixed, casting="unsafe")
        np.add(fixed, self._random_bits(count), out=fixed)
        np.right_shift(fixed, _RANDOM_BITS, out=fixed)
        # Negative numbers wrap, and come back with the offset.
        wrapped = self._fields[:count]
        np.copyto(wrapped, fixed, casting="unsafe")
        np.add(wrapped, self._levels, out=fields)
        return clipped

    def _wide(self, values: NDArray[np.float32], factor: float, size: float, fields: NDArray[Any]) -> int:
        """float64, whose mantissa becomes the fixed-point number; returns the number of clipped values."""
        count = values.size
        scaled, fixed = self._scaled[:count], self._fixed[:count]
        np.multiply(values, factor, out=scaled, dtype=np.float64)
        clipped = _clip(scaled, self._levels, size * factor)
        # The sum lies in [2^36, 2^36 + 2L], 2L < 2^32, and is rounded to nearest by the addition itself.
        np.add(scaled, _BINADE + self._levels, out=scaled)
        np.add(fixed, self._random_bits(count), out=fixed)
        np.right_shift(fixed, _RANDOM_BITS, out=fixed)
        # What the cast drops is the exponent and the 2^36.
        np.copyto(fields, fixed, casting="unsafe")
        return clipped

    def _widest(self, values: NDArray[np.float32], factor: float, size: float, fields: NDArray[Any]) -> int:
        """float64, the whole part apart from what is after the point; returns the number of clipped values."""
        count = values.size
        scaled, steps = self._scaled[:count], self._steps[:count]
        np.multiply(values, factor, out=scaled, dtype=np.float64)
        clipped = _clip(scaled, self._levels, size * factor)
        np.floor(scaled, out=steps)
        np.subtract(scaled, steps, out=scaled)
        # Both are below 2^63 in magnitude, so the sum in int64 is exact.
        signed = fields.view(np.int64)
        np.copyto(signed, steps, casting="unsafe")
        np.multiply(scaled, _ONE, out=scaled)
        fixed = self._fixed[:count]
        np.rint(scaled, out=fixed, casting="unsafe")
        np.add(fixed, self._random_bits(count), out=fixed)
        np.right_shift(fixed, _RANDOM_BITS, out=fixed)
        np.add(signed, fixed, out=signed)
        np.add(signed, self._levels, out=signed)
        return clipped

    def _random_bits(self, count: int) -> NDArray[np.uint16]:
        bits = self._bits[:count]
        self._stream.update_into(memoryview(self._zeros)[: bits.nbytes], bits.view(np.uint8).data)
        return bits


def split_words(words: NDArray[np.uint64], count: int) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """Whole steps [count] and fractions [count] in the words of a section that has both; views of it."""
    return words[:count], words[count:].view(np.uint32)[:count]


def split(
    values: NDArray[np.float32],
    factor: float,
    levels: int,
    fraction_bits: int,
    *,
    randomness: Callable[[int], bytes],
    offset_steps: NDArray[np.uint64],
    fractions: NDArray[np.uint32],
) -> int:
    """Write values * factor, clipped to [-L, L], as whole steps offset by L, and the rest in units of 2^-fraction_bits.

    All arrays are [m]; `randomness(k)` returns k secret random bytes. Returns how many were clipped.

    Units are finer than float32 by far, so a sum of such values would be exact. If one client's value is so much larger
    than another's that float32 has no digits of it there, the low digits of an exact sum are those of the smaller one.
    So each value is moved at random, by less than float32 rounds off, and the low digits are noise.
    """
    scaled = np.multiply(values, factor, dtype=np.float64)
    clipped = int(np.count_nonzero(np.abs(scaled) > levels))
    drawn = np.frombuffer(randomness(8 * values.size), np.uint64).astype(np.float64)
    scaled *= 1 + (np.ldexp(drawn, -64) - 0.5) * _BLUR
    np.clip(scaled, -levels, levels, out=scaled)
    steps = np.floor(scaled)
    np.add(steps.astype(np.int64), levels, out=offset_steps.view(np.int64))
    fractions[:] = np.rint(np.ldexp(scaled - steps, fraction_bits))
    return clipped


def join(
    steps: NDArray[np.uint64], fractions: NDArray[np.uint32], offset: int, fraction_bits: int, out: NDArray[np.float64]
) -> None:
    """Write what sums of such words stand for, in steps, to `out` [m].

    Args:
        offset: L times the number of terms.
    """
    np.subtract(steps.view(np.int64), offset, out=out, dtype=np.int64, casting="unsafe")
    out += np.ldexp(fractions.astype(np.float64), -fraction_bits)


def _nonce(chunk: int) -> bytes:
    """RFC 8439's block counter, zero, and nonce, as `cryptography` takes them."""
    return bytes(4) + chunk.to_bytes(12, "little")


def largest_magnitude(values: NDArray[np.float32]) -> float:
    """The largest |value|, 0 for none; NaN or infinity if one of them is not finite."""
    return max(float(values.max()), -float(values.min())) if values.size else 0.0


def _clip(scaled: NDArray[Any], limit: int, largest: float | np.float32) -> int:
    """Clip to [-limit, limit] in place; the passes are for the rare block whose `largest` needs them."""
    if not largest > limit:
        return 0
    clipped = int(np.count_nonzero(np.abs(scaled) > limit))
    np.clip(scaled, -limit, limit, out=scaled)
    return clipped


_LARGEST = (1 << 63) - 1


def encode_integers(
    encoding: Encoding, words: NDArray[np.uint64], *, base: ModelState, local: ModelState, examples: int
) -> None:
    """Write (local - base) * examples into `words`, the section `integers`, modulo 2^64.

    Raises EncodingError that names the tensor when n_max such differences could overflow the sum.
    """
    limit = _LARGEST // encoding.n_max
    for spec, start, stop, position in _blocks(encoding):
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
        words[position : position + delta.size] = (delta * examples).view(np.uint64)


def decode_integers(
    encoding: Encoding, words: NDArray[np.uint64], *, base: ModelState, examples: int, sink: StateSink
) -> tuple[str, ...]:
    """Write base + mean to the sink; the names of the tensors whose mean is no whole number, and was rounded.

    Raises PeerError when the mean is no value of the dtype.
    """
    rounded: dict[str, None] = {}
    for spec, start, stop, position in _blocks(encoding):
        old = base[spec.name].reshape(-1)[start:stop]
        sums = words[position : position + old.size].view(np.int64)
        delta = _nearest_quotient(sums, examples)
        if (delta * examples != sums).any():
            rounded[spec.name] = None
        mean = _as_int64(old) + delta
        new = mean.view(np.uint64) if spec.dtype == "U64" else mean.astype(spec.storage)
        intact = (_as_int64(new) == mean) & ((new >= old) == (delta >= 0))
        if not intact.all():
            raise PeerError(
                f"the mean of integer tensor {spec.name!r} does not fit {spec.dtype}: a client sent a malformed update",
                check="malformed-update",
            )
        sink.write(spec, start, new)
    return tuple(rounded)


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
