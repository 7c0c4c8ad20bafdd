"""Points and scalars of edwards25519's subgroup of prime order, and Fiat-Shamir challenges.

A scalar is a Python number modulo `ORDER`, a point its 32 bytes (RFC 8032). libsodium refuses to multiply what is no
point of the subgroup.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

from nacl import bindings

from fedcore.secagg.crypto import edwards
from fedcore.secagg.crypto.domain import Field, Usage, statement, tagged_hash
from fedcore.secagg.crypto.keys import Randomness, draw

ORDER = 2**252 + 27742317777372353535851937790883648493
SCALAR_BYTES, POINT_BYTES = edwards.SCALAR_BYTES, edwards.POINT_BYTES
_PER_THREAD = 32
"""Multiplications that are worth a thread."""
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_SPARE_BYTES = 16
"""What is drawn in excess before a number is reduced: no remainder is likelier than another by more than 2^-128."""


def below(limit: int, randomness: Randomness) -> int:
    """A uniform number in [0, limit)."""
    size = (limit.bit_length() + 7) // 8 + _SPARE_BYTES
    return int.from_bytes(draw(randomness, size), "little") % limit


def scalar(randomness: Randomness) -> int:
    """A uniform scalar."""
    return below(ORDER, randomness)


def scalar_bytes(number: int) -> bytes:
    """A scalar as it travels: 32 bytes, little-endian."""
    return number.to_bytes(SCALAR_BYTES, "little")


def times(number: int, point: bytes) -> bytes:
    """The multiple of a point, zero taking as long as others.

    Raises `nacl.exceptions.RuntimeError` for what is no point of the subgroup.
    """
    reduced = number % ORDER
    multiple = edwards.multiply(scalar_bytes(reduced or 1), point)
    return multiple if reduced else edwards.IDENTITY


def add(one: bytes, two: bytes) -> bytes:
    """The sum of two points."""
    return bindings.crypto_core_ed25519_add(one, two)


def combine(terms: Iterable[tuple[int, bytes]], threads: int = 1) -> bytes:
    """The sum of multiples of points; libsodium multiplies in several threads at once."""
    total = edwards.IDENTITY
    for part in _in_threads(_combine, list(terms), threads):
        total = add(total, part)
    return total


def _combine(terms: Sequence[tuple[int, bytes]]) -> bytes:
    total = edwards.IDENTITY
    for number, point in terms:
        total = add(total, times(number, point))
    return total


def fold_points(number: int, one: Sequence[bytes], two: Sequence[bytes], threads: int) -> tuple[bytes, ...]:
    """The multiples of points plus other points, one by one."""

    def fold(pairs: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
        return [add(times(number, a), b) for a, b in pairs]

    parts = _in_threads(fold, list(zip(one, two, strict=True)), threads)
    return tuple(point for part in parts for point in part)


def _in_threads(work: Callable[[Sequence[_Item]], _Result], items: Sequence[_Item], threads: int) -> list[_Result]:
    """The results of parts of the items, in their order; a part for each thread."""
    threads = min(threads, len(items) // _PER_THREAD)
    if threads <= 1:
        return [work(items)]
    ends = [len(items) * part // threads for part in range(threads + 1)]
    with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="norm") as pool:
        return list(pool.map(work, (items[start:end] for start, end in pairwise(ends))))


@lru_cache(maxsize=16)
def generators(name: str, count: int) -> tuple[bytes, ...]:
    """Points with no known relation: each is the image of a hash."""
    return tuple(
        bindings.crypto_core_ed25519_from_uniform(tagged_hash(Usage.NORM_GENERATOR, name, i)) for i in range(count)
    )


class ProofTranscript:
    """What prover and verifier have said so far; a challenge depends on all of it."""

    def __init__(self, *fields: Field) -> None:
        self._state = hashlib.sha512(statement(Usage.NORM_PROOF, *fields)).digest()

    def absorb(self, label: str, content: bytes) -> None:
        """Take in a message of the prover."""
        self._state = hashlib.sha512(statement(Usage.NORM_PROOF, self._state, label, content)).digest()

    def challenge(self, label: str) -> int:
        """A scalar, not zero but for a chance of 2^-252."""
        self.absorb(label, b"challenge")
        return int.from_bytes(self._state, "little") % ORDER

    def stream(self, label: str, size: int) -> bytes:
        """Bytes that the messages so far determine."""
        self.absorb(label, b"stream")
        return hashlib.shake_256(self._state).digest(size)
