"""The tree over the advertisements, against RFC 9162's recursive definition written out."""

from __future__ import annotations

import hashlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import ProtocolViolation
from fedcore.secagg.crypto.tree import Tree, root_of


def _leaves(count: int) -> list[bytes]:
    return [hashlib.sha256(b"leaf %d" % i).digest() for i in range(count)]


def _tag(kind: bytes) -> bytes:
    parts = (b"fedcore/secagg/v3/tree", kind)
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def _rfc_9162(leaves: list[bytes]) -> bytes:
    """MTH of section 2.1.1: k is the largest power of two smaller than n. Tags stand for the RFC's 0x00 and 0x01."""
    if len(leaves) == 1:
        return hashlib.sha256(_tag(b"leaf") + leaves[0]).digest()
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return hashlib.sha256(_tag(b"node") + _rfc_9162(leaves[:k]) + _rfc_9162(leaves[k:])).digest()


@pytest.mark.parametrize("count", [*range(1, 34), 63, 64, 65, 100, 1000])
def test_the_root_is_that_of_the_rfc(count):
    assert Tree(_leaves(count)).root == _rfc_9162(_leaves(count))


@pytest.mark.parametrize("count", range(1, 9))
def test_every_subset_of_a_small_tree_is_proved(count):
    """And with nothing shown the proof is the root itself; with everything, nothing."""
    leaves = _leaves(count)
    tree = Tree(leaves)
    for size in range(count + 1):
        for shown in itertools.combinations(range(count), size):
            proof = tree.prove(shown)
            assert root_of({i: leaves[i] for i in shown}, count, proof) == tree.root
            assert len(set(proof)) == len(proof)
    assert tree.prove(()) == (tree.root,)
    assert tree.prove(tuple(range(count))) == ()


@given(st.data())
def test_a_proof_is_as_long_as_the_subtrees_that_are_not_shown(data):
    count = data.draw(st.integers(1, 300))
    shown = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=40)))
    leaves = _leaves(count)
    tree = Tree(leaves)
    proof = tree.prove(shown)
    assert root_of({i: leaves[i] for i in shown}, count, proof) == tree.root
    assert len(proof) <= len(shown) * (count - 1).bit_length()


def _cases(count):
    """All trees of up to that many leaves with some, but not all of them shown."""
    for n in range(2, count + 1):
        for size in range(1, n):
            for shown in itertools.combinations(range(n), size):
                yield n, shown


@pytest.mark.parametrize("change", ["leaf", "hash", "order", "swap", "elsewhere"])
def test_whatever_is_altered_leads_to_another_root(change):
    tried = 0
    for n, shown in _cases(6):
        leaves = _leaves(n)
        tree, known = Tree(leaves), {i: leaves[i] for i in shown}
        proof = list(tree.prove(shown))
        count = n
        if change == "leaf":
            known[shown[-1]] = bytes(32)
        elif change == "hash":
            proof[-1] = bytes(32)
        elif change == "order" and len(proof) > 1:
            proof.reverse()
        elif change == "swap" and len(shown) > 1:
            known[shown[0]], known[shown[1]] = known[shown[1]], known[shown[0]]
        elif change == "elsewhere" and shown[-1] + 1 < n and (shown[-1] ^ 1) == shown[-1] + 1:
            # The sibling's place: the shape of the proof is the same.
            known[shown[-1] + 1] = known.pop(shown[-1])
        else:
            continue
        assert root_of(known, count, proof) != tree.root
        tried += 1
    assert tried > 10


def test_hashes_missing_or_too_many_or_of_another_size():
    for n, shown in _cases(6):
        leaves = _leaves(n)
        known, proof = {i: leaves[i] for i in shown}, Tree(leaves).prove(shown)
        for bad in (proof[:-1], proof[1:], (), (*proof, bytes(32)), (*proof[:-1], b""), (*proof[:-1], bytes(33))):
            with pytest.raises(ProtocolViolation, match="malformed"):
                root_of(known, n, bad)


def test_a_leaf_is_no_node():
    """Two leaves' hashes as one leaf of 64 bytes would make the same root in a tree without tags."""
    one, two = _leaves(2)
    hashes = [hashlib.sha256(_tag(b"leaf") + leaf).digest() for leaf in (one, two)]
    assert Tree([b"".join(hashes)]).root != Tree([one, two]).root


def test_the_number_of_leaves_counts():
    """A last leaf twice is another tree (a weakness of trees that fill up with copies)."""
    leaves = _leaves(3)
    assert Tree([*leaves, leaves[-1]]).root != Tree(leaves).root
