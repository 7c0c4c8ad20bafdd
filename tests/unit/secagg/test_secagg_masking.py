"""Mask streams: every seed bit counts, no keystream repeats, and any range can be made alone.

The tests are of the kind that a mask from a 32-bit seed, or a nonce used for two chunks, would fail
(flwrlabs/flower issue 7522).
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import UsageError
from fedcore.secagg import MaskTerm, Secret, apply_masks
from fedcore.secagg.crypto import masking
from fedcore.secagg.crypto.masking import BLOCK_WORDS, CHUNK_WORDS, GROUP_TERMS, WORKER_BYTES
from tests.support.raising import raises


def _stream(seed: bytes, count: int, offset: int = 0) -> np.ndarray:
    words = np.zeros(count, dtype=np.uint64)
    apply_masks(words, [MaskTerm(sign=1, seed=Secret(seed))], offset=offset)
    return words


def _terms(drbg, count):
    randomness = drbg("seeds")
    return [MaskTerm(sign=1 if i % 2 else -1, seed=Secret(randomness(32))) for i in range(count)]


def test_each_of_the_256_seed_bits_changes_half_of_the_stream(drbg):
    seed = drbg("seed")(32)
    base = _stream(seed, 64)
    for bit in range(256):
        flipped = (int.from_bytes(seed, "big") ^ (1 << bit)).to_bytes(32, "big")
        changed = np.unpackbits((base ^ _stream(flipped, 64)).view(np.uint8)).mean()
        assert 0.44 < changed < 0.56, f"seed bit {bit}"


def test_no_two_seeds_that_agree_in_32_bits_share_a_stream(drbg):
    """Seeds folded to any aligned 32 bits, or to the XOR of their words, would collide here."""
    randomness = drbg("seed")
    fixed = randomness(4)
    streams = set()
    for place in range(0, 32, 4):
        for _ in range(8):
            other = bytearray(randomness(32))
            other[place : place + 4] = fixed
            streams.add(_stream(bytes(other), 4).tobytes())
    words = np.frombuffer(randomness(32), dtype=np.uint32)
    for order in itertools.islice(itertools.permutations(range(8)), 64):
        streams.add(_stream(words[list(order)].tobytes(), 4).tobytes())
    assert len(streams) == 8 * 8 + 64


def test_no_block_of_keystream_repeats_within_or_between_chunks(drbg):
    seed = drbg("seed")(32)
    starts = [0, CHUNK_WORDS - 4096, CHUNK_WORDS, 2 * CHUNK_WORDS, 255 * CHUNK_WORDS, 256 * CHUNK_WORDS]
    blocks = np.concatenate([_stream(seed, 4096, start) for start in starts]).reshape(-1, 8)
    assert len(np.unique(blocks, axis=0)) == len(blocks)


@pytest.mark.parametrize("chunk", [0, 1, 2, 300])
def test_a_chunk_is_rfc_8439_with_its_number_as_nonce(drbg, chunk):
    seed = drbg("seed")(32)
    nonce = (0).to_bytes(4, "little") + chunk.to_bytes(12, "little")
    expected = Cipher(algorithms.ChaCha20(seed, nonce), mode=None).encryptor().update(bytes(800))
    assert _stream(seed, 100, chunk * CHUNK_WORDS).astype("<u8").tobytes() == expected


def test_the_stream_looks_uniform(drbg):
    words = _stream(drbg("seed")(32), 1 << 16)
    counts = np.bincount(words.view(np.uint8), minlength=256)
    chi_square = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    assert 170 < chi_square < 350  # 255 degrees of freedom: six standard deviations are about 135
    per_bit = np.unpackbits(words.view(np.uint8)).reshape(-1, 64).mean(axis=0)
    assert np.all(np.abs(per_bit - 0.5) < 0.015)


@given(
    start=st.integers(CHUNK_WORDS - 3 * BLOCK_WORDS, CHUNK_WORDS + 3 * BLOCK_WORDS),
    cuts=st.lists(st.integers(0, 5000), max_size=6),
)
def test_ranges_of_any_cut_join_to_the_whole(start, cuts):
    seed = bytes(range(32))
    whole = _stream(seed, 5000, start)
    edges = [0, *sorted(cuts), 5000]
    parts = [_stream(seed, stop - begin, start + begin) for begin, stop in itertools.pairwise(edges)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("threads", [2, 3, 16])
@pytest.mark.parametrize(
    "size",
    [1, 7, BLOCK_WORDS, BLOCK_WORDS + 1, 9 * BLOCK_WORDS // 8 + 10, 9 * BLOCK_WORDS // 8 + 11, 5 * BLOCK_WORDS + 3],
)
def test_threads_and_sizes(drbg, threads, size):
    terms = _terms(drbg, 3)
    one, many = np.arange(size, dtype=np.uint64), np.arange(size, dtype=np.uint64)
    apply_masks(one, terms, offset=CHUNK_WORDS - 10)
    apply_masks(many, terms, threads=threads, offset=CHUNK_WORDS - 10)
    np.testing.assert_array_equal(one, many)


def _naive_sum(start: np.ndarray, terms, offset: int) -> np.ndarray:
    """Stream by stream, each read from its chunks' beginnings by the cipher alone."""
    total = start.copy()
    for term in terms:
        chunks = range(offset // CHUNK_WORDS, (offset + start.size - 1) // CHUNK_WORDS + 1)
        parts = []
        for chunk in chunks:
            first = max(offset - chunk * CHUNK_WORDS, 0)
            last = min(offset + start.size - chunk * CHUNK_WORDS, CHUNK_WORDS)
            nonce = bytes(4) + chunk.to_bytes(12, "little")
            cipher = Cipher(algorithms.ChaCha20(term.seed.reveal(), nonce), mode=None).encryptor()
            parts.append(np.frombuffer(cipher.update(bytes(8 * last)), "<u8")[first:])
        stream = np.concatenate(parts)
        total = total + stream if term.sign == 1 else total - stream
    return total


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize(
    ("size", "count", "offset"),
    [
        (2500, 700, 0),  # short, many streams, more than are open at once
        (2500, 701, 17),
        (1, 300, 3),  # too little work for a second thread
        (BLOCK_WORDS + 9, 40, 5),  # by streams, two blocks
        (3 * BLOCK_WORDS, 12, 0),  # by ranges from two threads to three, by streams with seven
        (3 * BLOCK_WORDS + 1, 5, BLOCK_WORDS - 1),
    ],
)
def test_many_streams_and_long_vectors_equal_the_naive_sum(drbg, threads, size, count, offset):
    terms = _terms(drbg, count)
    words = np.arange(size, dtype=np.uint64)
    expected = _naive_sum(words, terms, offset)
    apply_masks(words, terms, threads=threads, offset=offset)
    np.testing.assert_array_equal(words, expected)


@pytest.mark.parametrize("size", [2000, 4 * BLOCK_WORDS])
def test_a_chunk_border_inside_a_shared_vector(drbg, size):
    """Cut by streams and by ranges: the nonce changes at the same word."""
    terms = _terms(drbg, -(-2 * WORKER_BYTES // (8 * size)))
    offset = CHUNK_WORDS - size // 2
    words = np.zeros(size, dtype=np.uint64)
    apply_masks(words, terms, threads=2, offset=offset)
    expected = np.zeros(size, dtype=np.uint64)
    for half in (slice(0, size // 2), slice(size // 2, size)):
        apply_masks(expected[half], terms, offset=offset + half.start)
    np.testing.assert_array_equal(words, expected)


@pytest.mark.parametrize(("size", "count"), [(2000, 600), (8 * BLOCK_WORDS, 4)])
def test_an_error_in_a_thread_reaches_the_caller(drbg, size, count):
    terms = [*_terms(drbg, count - 1), object()]
    with pytest.raises(AttributeError):
        apply_masks(np.zeros(size, dtype=np.uint64), terms, threads=2)


def test_terms_add_up_with_their_signs_and_the_inverse_removes_them(drbg):
    terms = _terms(drbg, GROUP_TERMS + 3)
    words = np.arange(100, dtype=np.uint64)
    apply_masks(words, terms)
    expected = np.arange(100, dtype=np.uint64)
    for term in terms:
        stream = _stream(term.seed.reveal(), 100)
        expected += stream if term.sign == 1 else np.uint64(0) - stream
    np.testing.assert_array_equal(words, expected)
    apply_masks(words, [term.inverse() for term in reversed(terms)])
    np.testing.assert_array_equal(words, np.arange(100, dtype=np.uint64))


def test_no_terms_or_no_words_change_nothing(drbg):
    words = np.arange(5, dtype=np.uint64)
    apply_masks(words, [])
    np.testing.assert_array_equal(words, np.arange(5))
    apply_masks(np.empty(0, dtype=np.uint64), _terms(drbg, 2), threads=4)


def test_arguments_out_of_range():
    words = np.zeros(4, dtype=np.uint64)
    with pytest.raises(UsageError, match="threads"):
        apply_masks(words, [], threads=0)
    with pytest.raises(UsageError, match="offset"):
        apply_masks(words, [], offset=-1)
    for size in (4, 31, 33):
        with pytest.raises(UsageError, match="seed"):
            MaskTerm(sign=1, seed=Secret(bytes(size)))
    with pytest.raises(UsageError, match="sign"):
        MaskTerm(sign=0, seed=Secret(bytes(32)))


@given(count=st.integers(1, 10_000), parts=st.integers(1, 70), unit=st.integers(1, 3000))
def test_a_cut_leaves_nothing_out_and_has_no_empty_range(count, parts, unit):
    ranges = list(masking._cut(count, parts, unit=unit))
    assert 1 <= len(ranges) <= parts
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == count
    assert all(start < stop and start % unit == 0 for start, stop in ranges)


@pytest.mark.parametrize(
    ("size", "count", "threads", "most"),
    [
        (2000, 600, 2, 2),
        (2000, 600, 16, 9),  # 9.2 MiB of keystream, and nobody starts for less than one
        (8 * BLOCK_WORDS, 4, 2, 2),
        (8 * BLOCK_WORDS, 1, 16, 2),
        (16 * BLOCK_WORDS - 8, 5, 16, 5),  # too short for ranges, and five streams have no use for more
        (2000, 40, 16, 1),
    ],
)
def test_no_more_threads_than_were_asked_for_nor_than_have_enough_to_do(drbg, monkeypatch, size, count, threads, most):
    seen, executor = [], masking.ThreadPoolExecutor

    def started(max_workers, **named):
        seen.append(max_workers)
        return executor(max_workers, **named)

    monkeypatch.setattr(masking, "ThreadPoolExecutor", started)
    apply_masks(np.zeros(size, dtype=np.uint64), _terms(drbg, count), threads=threads)
    assert seen == ([most] if most > 1 else [])


def _read_only(words):
    words.flags.writeable = False
    return words


@pytest.mark.parametrize(
    "vector",
    [
        [0] * 6,
        np.zeros(6, dtype=np.int64),
        np.zeros(6, dtype=np.float64),
        np.zeros(6, dtype=np.uint32),
        np.zeros(6, dtype=np.dtype(np.uint64).newbyteorder()),
        np.zeros((6, 1), dtype=np.uint64),
        np.zeros((), dtype=np.uint64),
        np.zeros(12, dtype=np.uint64)[::2],
        np.zeros(6, dtype=np.uint64)[::-1],
        _read_only(np.zeros(6, dtype=np.uint64)),
    ],
    ids=["list", "signed", "float", "narrow", "swapped", "matrix", "scalar", "strided", "reversed", "read-only"],
)
def test_only_a_vector_that_can_be_masked_in_place_is_taken(drbg, vector):
    """Anything else would be masked as a copy, or as other numbers, and go out as it was."""
    before = np.array(vector)
    with raises(UsageError, check="vector"):
        apply_masks(vector, _terms(drbg, 1))
    np.testing.assert_array_equal(vector, before)


def test_pair_seeds_of_a_round_are_full_and_distinct(make_rig):
    """All seeds that a server rebuilds, over many rounds: 32 bytes each, none twice, every bit taking both values."""
    seeds = []
    for number in range(1, 6):
        rig = make_rig(6, threshold=4, round=number).until("upload")
        rig.lose("upload", [2, 5])
        seeds += [term.seed.reveal() for term in rig.server.mask_terms()]
    assert len(set(seeds)) == len(seeds) == 5 * (4 + 2 * 4)
    bits = np.unpackbits(np.frombuffer(b"".join(seeds), dtype=np.uint8)).reshape(-1, 256)
    assert np.all((bits.mean(axis=0) > 0) & (bits.mean(axis=0) < 1))
