"""Statistics that a weak mask would fail: a 32-bit seed, a nonce used twice, masks that are not uniform or not fresh.

Every statistic is computed twice: on what the protocol makes, and on the same with a fault planted, which must show.
So no test here passes for want of power. (flwrlabs/flower issue 7522 is the 32-bit seed.)

All randomness is fixed. A deviation is in standard deviations of a good mask's: one above 7 has probability 2.6e-12,
and all tests together look at fewer than 2000, so that a false alarm, where somebody changes a seed or the protocol's
bytes, has a probability below 1e-8.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections import Counter
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from fedcore.codec import CodecSettings, encode, first_encoding
from fedcore.secagg import MaskTerm, Secret, apply_masks, keys, masking, schedule
from fedcore.secagg.domain import derive
from fedcore.secagg.masking import BLOCK_WORDS, CHUNK_WORDS
from fedcore.state import ModelState

LIMIT = 7.0
SEED_BITS = 256


def _stream(seed, count, offset=0):
    words = np.zeros(count, dtype=np.uint64)
    apply_masks(words, [MaskTerm(sign=1, seed=Secret(seed))], offset=offset)
    return words


def _repeats(rows):
    """How many rows of an array [n, ...] are like an earlier one."""
    raw = np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)
    return len(raw) - len({row.tobytes() for row in raw})


# --- a seed of 32 bits -------------------------------------------------------------------------------------------


FOLDS = {
    "low word": lambda seeds: seeds.view("<u4")[:, 0],
    "xor of words": lambda seeds: np.bitwise_xor.reduce(seeds.view("<u4"), axis=1),
    "crc": lambda seeds: np.array([zlib.crc32(seed) for seed in seeds], dtype="<u4"),
    "hash": lambda seeds: np.array([int.from_bytes(hashlib.sha256(seed).digest()[:4]) for seed in seeds], dtype="<u4"),
}
"""How seeds, uint8 [n, 32], become 32 bits each. A fold's streams are hidden behind a hash, and each looks perfect."""


def _folded_stream(fold, seed, count):
    folded = FOLDS[fold](np.frombuffer(seed, np.uint8).reshape(1, -1))
    return _stream(hashlib.sha256(folded.tobytes()).digest(), count)


def _dead_bits(stream, seed):
    """Seed bits that, flipped, do not change about half of the stream's bits."""
    base, number = stream(seed, 64), int.from_bytes(seed, "little")
    dead = 0
    for bit in range(SEED_BITS):
        other = stream((number ^ (1 << bit)).to_bytes(32, "little"), 64)
        dead += abs(_coin_deviation(np.unpackbits((base ^ other).view(np.uint8)))) > LIMIT
    return dead


def _coin_deviation(bits):
    """How far the number of ones is from that of fair coins."""
    return (2 * int(np.sum(bits, dtype=np.int64)) - bits.size) / math.sqrt(bits.size)


def test_every_bit_of_the_seed_changes_half_of_the_stream(drbg):
    seed = drbg("seed")(32)
    assert _dead_bits(_stream, seed) == 0
    assert _dead_bits(lambda *given: _folded_stream("low word", *given), seed) == SEED_BITS - 32


def test_there_are_more_than_2_to_the_32_streams():
    """Birthdays: whatever folds its seeds to 32 bits, n of them have about n^2 / 2^33 collisions, here 4.7."""
    raw = hashlib.shake_256(b"birthdays").digest(32 * 200_000)
    # Without the vector around it, which would take most of the time; the tests beside this one have it.
    starts = {
        masking._open_stream(Secret(raw[place : place + 32]), 0).update(bytes(16)) for place in range(0, len(raw), 32)
    }
    assert len(starts) == 200_000
    seeds = np.frombuffer(raw, np.uint8).reshape(-1, 32)
    for name, fold in FOLDS.items():
        # The streams of a fold collide exactly where the fold does, and need not be made.
        assert len(np.unique(fold(seeds))) < len(seeds), name


@pytest.mark.parametrize("fold", ["low word", "xor of words"])
def test_seeds_made_to_agree_in_32_bits_have_different_streams(drbg, fold):
    randomness = drbg(fold)
    seeds = [bytearray(randomness(32)) for _ in range(100)]
    for seed in seeds:
        rest = 0 if fold == "low word" else int.from_bytes(_xor(seed[4:]))
        seed[:4] = (rest ^ 0x5EED5EED).to_bytes(4)
    assert _repeats(np.stack([_stream(bytes(seed), 8) for seed in seeds])) == 0
    assert _repeats(np.stack([_folded_stream(fold, bytes(seed), 8) for seed in seeds])) == len(seeds) - 1


def _xor(raw):
    return np.bitwise_xor.reduce(np.frombuffer(raw, "<u4")).tobytes()


def _rank(seeds):
    """Dimension over GF(2) of what the seeds span."""
    basis: dict[int, int] = {}
    for seed in seeds:
        value = int.from_bytes(seed)
        while value and value.bit_length() in basis:
            value ^= basis[value.bit_length()]
        if value:
            basis[value.bit_length()] = value
    return len(basis)


def test_the_seeds_of_rounds_span_all_256_bits(make_rig, ciphers):
    """A seed that is filled up from 32 bits, by zeros, repetition or anything linear, spans 32 dimensions."""
    for number in range(1, 12):
        make_rig(7, round=number).until("sign")
    seeds = sorted({use.key for use in ciphers.streams})
    # For each round a self mask for each client, a pairwise one for any two, and the order on the ring.
    assert len(seeds) == 11 * (7 + 7 * 6 // 2 + 1)
    assert _rank(seeds) == SEED_BITS
    assert _rank([seed[:4] + bytes(28) for seed in seeds]) == _rank([seed[:4] * 8 for seed in seeds]) == 32


# --- a nonce that is used twice ----------------------------------------------------------------------------------


class Use(NamedTuple):
    """One cipher set up: by whom, and with which key and nonce (ChaCha20's with the block counter in front)."""

    party: str
    key: bytes
    nonce: bytes


class Ciphers:
    """Every ChaCha20 stream opened and every text sealed, by the party that acts."""

    def __init__(self):
        self.party = "server"
        self.streams: list[Use] = []
        self.sealed: list[Use] = []

    def reused(self):
        """Keys with a nonce that protected two things: two texts, two vectors, or a text and a vector.

        The two ends of a pair use the same stream, once each; the server makes it again to remove it.
        """
        own = Counter(use for use in self.streams if use.party != "server")
        masks = Counter((key, nonce) for _, key, nonce in own)
        texts = Counter((key, nonce) for _, key, nonce in self.sealed)
        both = {use.key for use in self.streams} & {use.key for use in self.sealed}
        return (
            {use.key for use, count in own.items() if count > 1}
            | {key for (key, _), count in masks.items() if count > 2}
            | {key for (key, _), count in texts.items() if count > 1}
            | both
        )


class Acting:
    """A client's session that says when it acts."""

    def __init__(self, ciphers, client_id, session):
        self._ciphers, self._name, self._session = ciphers, f"client {client_id}", session

    def __getattr__(self, step):
        def act(*given, **named):
            self._ciphers.party = self._name
            try:
                return getattr(self._session, step)(*given, **named)
            finally:
                self._ciphers.party = "server"

        return act


@pytest.fixture
def ciphers(monkeypatch):
    """Recorded where the protocol calls the library of ciphers, so that nothing gets past."""
    seen, chacha20 = Ciphers(), algorithms.ChaCha20

    def open_stream(key, nonce):
        seen.streams.append(Use(seen.party, bytes(key), bytes(nonce)))
        return chacha20(key, nonce)

    class Sealing:
        def __init__(self, key):
            self._key, self._cipher = bytes(key), ChaCha20Poly1305(key)

        def encrypt(self, nonce, text, associated):
            seen.sealed.append(Use(seen.party, self._key, bytes(nonce)))
            return self._cipher.encrypt(nonce, text, associated)

        def decrypt(self, nonce, text, associated):
            return self._cipher.decrypt(nonce, text, associated)

    monkeypatch.setattr(algorithms, "ChaCha20", open_stream)
    monkeypatch.setattr(keys, "ChaCha20Poly1305", Sealing)
    return seen


def _round_with_dropouts(make_rig, drbg, ciphers, number):
    """Six of seven share, five of them upload. Every round finds every client's source in the same state."""
    rig = make_rig(7, threshold=4, round=number)
    rig.clients = {i: Acting(ciphers, i, rig.client(i, randomness=drbg(f"client {i}"))) for i in rig.ids}
    rig.advertise()
    rig.share([1, 2, 4, 5, 6, 7])
    rig.deliver()
    rig.lose("upload", [5])


def test_no_key_and_nonce_is_used_twice_in_rounds_with_dropouts(make_rig, drbg, ciphers):
    """Pairs, directions, purposes and rounds, even where a machine that was reset draws the same bytes again."""
    for number in (1, 2, 3):
        _round_with_dropouts(make_rig, drbg, ciphers, number)
    # Six clients seal shares for six others, and a secret for the three whom they choose for.
    assert len(ciphers.sealed) == 3 * (6 * 6 + 6 * 3)
    masks = [use for use in ciphers.streams if use.party != "server"]
    assert len(masks) == 3 * 5 * 6
    assert ciphers.reused() == set()


def test_a_round_that_is_run_again_with_the_same_bytes_reuses_all(make_rig, drbg, ciphers):
    """What a session that could be stored would do: the statistic above finds each key."""
    for _ in range(2):
        _round_with_dropouts(make_rig, drbg, ciphers, 1)
    assert ciphers.reused() == {use.key for use in (*ciphers.sealed, *ciphers.streams) if use.party != "server"}


def _without_direction(secret, salt, usage, *fields):
    numbers = sorted(part for part in fields if isinstance(part, int))
    return derive(secret, salt, usage, *(part for part in fields if not isinstance(part, int)), *numbers)


def _without_context(secret, salt, usage, *fields):
    return derive(secret, bytes(32), usage, *(part for part in fields if isinstance(part, int)))


def _of_one_purpose(secret, salt, usage, *fields):
    return hashlib.sha256(salt).digest()


@pytest.mark.parametrize("fault", [_without_direction, _without_context, _of_one_purpose])
def test_keys_that_leave_something_out_are_found(make_rig, drbg, ciphers, monkeypatch, fault):
    monkeypatch.setattr(schedule, "derive", fault)
    for number in (1, 2):
        _round_with_dropouts(make_rig, drbg, ciphers, number)
    assert ciphers.reused()


NEAR_BORDERS = [0, *(chunk * CHUNK_WORDS + side for chunk in (1, 2, 255, 256, 65536) for side in (-2048, 0))]


@pytest.mark.parametrize(
    "fault",
    [
        lambda word: word % CHUNK_WORDS,  # one nonce for all chunks
        lambda word: word - word // CHUNK_WORDS % 2 * 8,  # every other chunk begins one cipher block early
        lambda word: word % (256 * CHUNK_WORDS),  # the chunk's number in one byte
    ],
)
def test_no_word_of_a_stream_repeats_in_another_chunk(drbg, fault):
    """64-bit words of a good stream repeat among 22,528 with probability 1.4e-11."""
    seed = drbg("seed")(32)
    assert _repeats(np.concatenate([_stream(seed, 2048, word) for word in NEAR_BORDERS])) == 0
    assert _repeats(np.concatenate([_stream(seed, 2048, fault(word)) for word in NEAR_BORDERS])) >= 8


def test_threads_open_no_range_of_a_stream_twice(ciphers, drbg):
    """Each range has a counter of its own: positions in cipher blocks, which follow from nonce and counter."""
    words = np.zeros(4 * BLOCK_WORDS, dtype=np.uint64)
    ciphers.party = "client 1"
    apply_masks(words, [MaskTerm(sign=1, seed=Secret(drbg("seed")(32)))], threads=4, offset=CHUNK_WORDS - BLOCK_WORDS)
    assert len(ciphers.streams) == 4
    assert ciphers.reused() == set()
    apply_masks(words, [MaskTerm(sign=1, seed=Secret(drbg("seed")(32)))], threads=1, offset=CHUNK_WORDS - BLOCK_WORDS)
    assert ciphers.reused() == {drbg("seed")(32)}


def _rounding_streams(sources, exchanges=3):
    """Encode for each client and exchange; `sources` gives a client's source of randomness for an exchange."""
    base = ModelState.from_arrays({"weight": np.zeros(100, np.float32)})
    local = ModelState.from_arrays({"weight": np.full(100, 0.01, np.float32)})
    encoding = first_encoding(CodecSettings(), base.layout, 3)
    for exchange in range(exchanges):
        for client in (1, 2, 3):
            source = sources(client, exchange)
            encode(encoding, base=base, local=local, examples=10, metrics={}, randomness=source)


def test_every_client_and_exchange_rounds_with_a_stream_of_its_own(make_rig, drbg, ciphers):
    lasting = {i: drbg(f"client {i}") for i in (1, 2, 3)}
    _rounding_streams(lambda client, _: lasting[client])
    rounding = [use.key for use in ciphers.streams]
    assert len(set(rounding)) == len(rounding) == 9
    # The session of an exchange draws from the same source.
    rig = make_rig(3)
    rig.clients = {i: rig.client(i, randomness=lasting[i]) for i in rig.ids}
    rig.until("end")
    assert not set(rounding) & {use.key for use in (*ciphers.streams[9:], *ciphers.sealed)}


@pytest.mark.parametrize("seed", ["one for all", "client {client}", "exchange {exchange}"])
def test_a_source_that_begins_again_rounds_with_a_stream_used_before(drbg, ciphers, seed):
    _rounding_streams(lambda client, exchange: drbg(seed.format(client=client, exchange=exchange)))
    assert len({use.key for use in ciphers.streams}) < len(ciphers.streams) == 9


# --- masked vectors are uniform, and those of two rounds independent ------------------------------------------------


ROUNDS, CLIENTS, WORDS = 60, 3, 64


@pytest.fixture
def uploads(make_rig, drbg):
    """Masked vectors [rounds, clients, words] of a constant input, every source of randomness always the same."""
    rows = []
    for number in range(1, ROUNDS + 1):
        rig = make_rig(CLIENTS, words=WORDS, round=number)
        rig.clients = {i: rig.client(i, randomness=drbg(f"client {i}")) for i in rig.ids}
        rig.inputs = {i: np.full(WORDS, CONSTANT) for i in rig.ids}
        rig.until("sign")
        rows.append(np.stack([rig.uploads[i] for i in rig.ids]))
    return np.stack(rows)


CONSTANT = np.uint64(0x0123_4567_89AB_CDEF)


def _deviation(words):
    """The largest of 65: chi-square of the byte values, and the ones at each of a word's 64 bits."""
    raw = np.ascontiguousarray(words, "<u8").reshape(-1, 1).view(np.uint8)
    counts = np.bincount(raw.reshape(-1), minlength=256)
    chi_square = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    ones = [_coin_deviation(bits) for bits in np.unpackbits(raw, axis=1, bitorder="little").T]
    return max(abs(_normal(chi_square, 255)), *map(abs, ones))


def _normal(chi_square, freedom):
    """The standard normal deviate of a chi-square value (Wilson and Hilferty 1931)."""
    spread = 2 / (9 * freedom)
    return ((chi_square / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


NOT_UNIFORM = {
    "none at all": lambda mask: mask * np.uint64(0),
    "a constant": lambda mask: mask * np.uint64(0) + np.uint64(0xA5C3_96F0_0F69_3C5A),
    "32 bits in each word": lambda mask: mask & np.uint64(0xFFFF_FFFF),
    "signed, so 63 bits": lambda mask: mask >> np.uint64(1),
    "a float's 53 bits": lambda mask: (mask >> np.uint64(11)) << np.uint64(11),
    "modulo a prime": lambda mask: mask % np.uint64(2**61 - 1),
    "low bytes biased": lambda mask: mask - (mask & np.uint64(0xFF)) // np.uint64(8),
    "the smaller of two": lambda mask: np.minimum(mask, mask[:, :, ::-1]),
}


def test_masked_vectors_of_a_constant_input_are_uniform(uploads):
    assert _deviation(uploads) < LIMIT
    for client in range(CLIENTS):
        assert _deviation(uploads[:, client]) < LIMIT
    for name, fault in NOT_UNIFORM.items():
        assert _deviation(CONSTANT + fault(uploads - CONSTANT)) > LIMIT, name


def _dependence(vectors):
    """The largest deviation of the sums and differences of neighbouring rounds and clients; infinite for a word twice.

    Words repeat among 11,520 uniform ones with probability 4e-12.
    """
    if _repeats(vectors.reshape(-1, 1)):
        return math.inf
    pairs = [*pairwise(vectors), *pairwise(np.swapaxes(vectors, 0, 1))]
    differences = np.concatenate([(one - other).reshape(-1) for one, other in pairs])
    sums = np.concatenate([(one + other).reshape(-1) for one, other in pairs])
    return max(_deviation(differences), _deviation(sums))


def _each_round(masks):
    return np.arange(len(masks), dtype=np.uint64).reshape(-1, 1, 1)


NOT_INDEPENDENT = {
    "reused": lambda masks: masks[:1] + 0 * masks,
    "reused after a long time": lambda masks: np.concatenate([masks[:-1], masks[:1]]),
    "off by a constant": lambda masks: masks[:1] + _each_round(masks) * np.uint64(0x9E37_79B9_7F4A_7C15),
    "of the other sign": lambda masks: np.repeat(masks[::2], 2, axis=0) * (1 - 2 * (_each_round(masks) % 2)),
    "one word further on": lambda masks: np.stack([np.roll(masks[0], i, axis=-1) for i in range(len(masks))]),
    "the same for all clients": lambda masks: masks[:, :1] + 0 * masks,
    "fresh in 40 bits only": lambda masks: masks[:1] + (masks & np.uint64(2**40 - 1)),
}


def test_masks_of_two_rounds_and_of_two_clients_are_independent(uploads):
    assert _dependence(uploads) < LIMIT
    for name, fault in NOT_INDEPENDENT.items():
        assert _dependence(CONSTANT + fault(uploads - CONSTANT)) > LIMIT, name


def test_the_deviation_of_uniform_words_is_that_of_a_normal_variable():
    """The statistic is neither blind nor jumpy: over 200 samples of good words its largest part stays near 2.5."""
    source = np.random.default_rng(7522)
    found = [_deviation(source.integers(0, 2**64, 2000, dtype=np.uint64, endpoint=False)) for _ in range(200)]
    assert 2.2 < np.mean(found) < 2.8
    assert max(found) < 5
