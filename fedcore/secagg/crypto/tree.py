"""A Merkle tree over everything that was advertised, so that a client need only see its own neighbours' keys.

The tree is that of RFC 9162, section 2.1: leaves and inner nodes are hashed under different tags, and a tree of n
leaves splits at the largest power of two below n. A proof for several leaves is the list of the roots of all subtrees
that hold none of them, from left to right.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from fedcore.errors import ProtocolViolation
from fedcore.secagg.checks import Check
from fedcore.secagg.crypto.domain import HASH_BYTES, Usage, statement

_LEAF = statement(Usage.TREE, "leaf")
_NODE = statement(Usage.TREE, "node")


class Tree:
    """The tree over `leaves` (32 bytes each, at least one); keeps every inner hash, about twice the leaves."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self._count = len(leaves)
        self._hashes: dict[tuple[int, int], bytes] = {}
        self._build(leaves, 0, self._count)

    @property
    def root(self) -> bytes:
        """32 bytes."""
        return self._hashes[0, self._count]

    def prove(self, indices: Sequence[int]) -> tuple[bytes, ...]:
        """What `root_of` needs in addition to these leaves (ascending, distinct)."""
        proof: list[bytes] = []
        self._collect(indices, 0, len(indices), 0, self._count, proof)
        return tuple(proof)

    def _build(self, leaves: Sequence[bytes], start: int, stop: int) -> bytes:
        if stop - start == 1:
            value = _leaf(leaves[start])
        else:
            middle = _middle(start, stop)
            value = _node(self._build(leaves, start, middle), self._build(leaves, middle, stop))
        self._hashes[start, stop] = value
        return value

    def _collect(self, indices: Sequence[int], low: int, high: int, start: int, stop: int, proof: list[bytes]) -> None:
        """Add what proves the leaves `start` .. `stop`, of which indices[low:high] are known."""
        if low == high:
            proof.append(self._hashes[start, stop])
        elif stop - start > 1:
            middle = _middle(start, stop)
            cut = bisect_left(indices, middle, low, high)
            self._collect(indices, low, cut, start, middle, proof)
            self._collect(indices, cut, high, middle, stop, proof)


def root_of(leaves: Mapping[int, bytes], count: int, proof: Sequence[bytes]) -> bytes:
    """The root of a tree with `count` leaves, of which `leaves` (index -> 32 bytes) are known.

    Raises ProtocolViolation("malformed") if the proof has too few or too many hashes.
    """
    rest = iter(proof)
    root = _fold(sorted(leaves), leaves, 0, count, rest)
    if next(rest, None) is not None:
        raise ProtocolViolation(Check.MALFORMED, "the proof of the cohort holds more hashes than it needs")
    return root


def _fold(indices: Sequence[int], leaves: Mapping[int, bytes], start: int, stop: int, rest: Iterator[bytes]) -> bytes:
    if not indices:
        sibling = next(rest, None)
        if sibling is None or len(sibling) != HASH_BYTES:
            raise ProtocolViolation(
                Check.MALFORMED, "the proof of the cohort lacks a hash, or holds one of another size"
            )
        return sibling
    if stop - start == 1:
        return _leaf(leaves[start])
    middle = _middle(start, stop)
    left = [index for index in indices if index < middle]
    first = _fold(left, leaves, start, middle, rest)
    return _node(first, _fold(indices[len(left) :], leaves, middle, stop, rest))


def _middle(start: int, stop: int) -> int:
    """Where a subtree of two leaves or more splits."""
    return start + (1 << ((stop - start - 1).bit_length() - 1))


def _leaf(value: bytes) -> bytes:
    return hashlib.sha256(_LEAF + value).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(_NODE + left + right).digest()
