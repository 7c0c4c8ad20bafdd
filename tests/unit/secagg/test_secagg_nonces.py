"""Keys and nonces as the ciphers get them: enough bits in every seed, and no keystream for two things.

Every statistic is computed twice: on what the protocol does, and on the same with a fault planted, which must show.
All randomness is fixed.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from fedcore.codec import CodecSettings, encode, first_encoding
from fedcore.secagg import MaskTerm, Secret, apply_masks, fixed_cohort, graph
from fedcore.secagg import client as session
from fedcore.secagg.crypto import keys, masking, schedule
from fedcore.secagg.crypto.domain import derive
from fedcore.secagg.crypto.masking import BLOCK_WORDS, CHUNK_WORDS
from fedcore.secagg.graph import Graph
from fedcore.state import ModelState

SEED_BITS = 256


class Use(NamedTuple):
    """Keystream drawn: by whom, under which key and nonce (ChaCha20's with the block counter in front)."""

    party: str
    key: bytes
    nonce: bytes


class Ciphers:
    """Every ChaCha20 stream drawn from and every text sealed, by the party that acts.

    orders: apart from the others, the streams that put the clients on the ring. Their keys are public, all parties
    make the same ones, and nothing is hidden under them.
    """

    def __init__(self):
        self.party = "server"
        self.opened = 0
        self.streams: list[Use] = []
        self.orders: list[Use] = []
        self.sealed: list[Use] = []

    def reused(self):
        """Keys with a nonce that protected two things: two texts, two vectors, or a text and a vector.

        The two ends of a pair use the same stream, once each; the server makes it again to remove it. An order is
        drawn once by each party, under a key that serves nothing else.
        """
        own = Counter(use for use in self.streams if use.party != "server")
        masks = Counter((key, nonce) for _, key, nonce in own)
        texts = Counter((key, nonce) for _, key, nonce in self.sealed)
        vectors, public = {use.key for use in self.streams}, {use.key for use in self.orders}
        sealing = {use.key for use in self.sealed}
        return (
            {use.key for use, count in (own + Counter(self.orders)).items() if count > 1}
            | {key for (key, _), count in masks.items() if count > 2}
            | {key for (key, _), count in texts.items() if count > 1}
            | (vectors & sealing)
            | (public & (vectors | sealing))
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


class Drawing:
    """A cipher's context that tells of the first bytes drawn after each start.

    A stream starts where it is opened and wherever its nonce is set again. A start from which nothing is drawn uses
    up nothing.
    """

    def __init__(self, context, algorithm, told):
        self._context, self._key, self._told = context, bytes(algorithm.key), told
        self._start: bytes | None = bytes(algorithm.nonce)

    def reset_nonce(self, nonce):
        self._start = bytes(nonce)
        self._context.reset_nonce(nonce)

    def update(self, data):
        self._tell()
        return self._context.update(data)

    def update_into(self, data, target):
        self._tell()
        return self._context.update_into(data, target)

    def _tell(self):
        if self._start is not None:
            self._told(self._key, self._start)
            self._start = None


class OrderCipher(Cipher):
    """What the graph is given for `Cipher`, to know its streams from all others."""


@pytest.fixture
def ciphers(monkeypatch):
    """Recorded where anybody calls the library of ciphers, so that nothing gets past.

    Every party makes the ring itself, as on machines of their own.
    """
    for party in (session, fixed_cohort):
        monkeypatch.setattr(party, "graph_over", Graph)
    seen, encryptor = Ciphers(), Cipher.encryptor

    def recorded(cipher):
        seen.opened += 1
        uses = seen.orders if isinstance(cipher, OrderCipher) else seen.streams
        return Drawing(encryptor(cipher), cipher.algorithm, lambda key, nonce: uses.append(Use(seen.party, key, nonce)))

    class Sealing:
        def __init__(self, key):
            self._key, self._cipher = bytes(key), ChaCha20Poly1305(key)

        def encrypt(self, nonce, text, associated):
            seen.sealed.append(Use(seen.party, self._key, bytes(nonce)))
            return self._cipher.encrypt(nonce, text, associated)

        def decrypt(self, nonce, text, associated):
            return self._cipher.decrypt(nonce, text, associated)

    monkeypatch.setattr(Cipher, "encryptor", recorded)
    monkeypatch.setattr(graph, "Cipher", OrderCipher)
    monkeypatch.setattr(keys, "ChaCha20Poly1305", Sealing)
    return seen


# --- seeds ---------------------------------------------------------------------------------------------------------


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
    # For each round a self mask for each client and a pairwise one for any two; besides, one order on the ring.
    assert len(seeds) == 11 * (7 + 7 * 6 // 2)
    assert len({use.key for use in ciphers.orders}) == 11
    assert _rank(seeds) == SEED_BITS
    assert _rank([seed[:4] + bytes(28) for seed in seeds]) == _rank([seed[:4] * 8 for seed in seeds]) == 32


# --- no keystream for two things ----------------------------------------------------------------------------------


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
    # The server's and six clients': the one who advertised and went did not ask for the cohort.
    assert len(ciphers.orders) == 3 * (1 + 6)
    assert ciphers.reused() == set()


def test_a_round_that_is_run_again_with_the_same_bytes_reuses_all(make_rig, drbg, ciphers):
    """What a session that could be stored would do: the statistic above finds each key."""
    for _ in range(2):
        _round_with_dropouts(make_rig, drbg, ciphers, 1)
    hiding = {use.key for use in (*ciphers.sealed, *ciphers.streams) if use.party != "server"}
    assert ciphers.reused() == hiding | {use.key for use in ciphers.orders}


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


@pytest.mark.parametrize(
    ("blocks", "terms", "starts"),
    [
        # A long vector is shared by ranges: four ranges for each thread, each of them sought once for each stream.
        (16, 1, 16),
        # A short one is shared by streams, each of which is opened once, and once more behind the border of a chunk.
        (2, 32, 64),
    ],
)
def test_threads_draw_no_range_of_a_stream_twice(ciphers, drbg, blocks, terms, starts):
    """Each range has a counter of its own: positions in cipher blocks, which follow from nonce and counter."""
    words = np.zeros(blocks * BLOCK_WORDS, dtype=np.uint64)
    masks = [MaskTerm(sign=1, seed=Secret(drbg(f"seed {number}")(32))) for number in range(terms)]
    ciphers.party = "client 1"
    apply_masks(words, masks, threads=4, offset=CHUNK_WORDS - BLOCK_WORDS)
    assert len(ciphers.streams) == starts
    # A range belongs to the thread that takes it, and each of the four opens a stream at most once.
    assert terms <= ciphers.opened <= min(terms * 4, starts - terms)
    assert ciphers.reused() == set()
    apply_masks(words, masks, threads=1, offset=CHUNK_WORDS - BLOCK_WORDS)
    assert ciphers.reused() == {mask.seed.reveal() for mask in masks}


def test_a_stream_that_stays_open_and_goes_back_is_found(ciphers, drbg):
    """Its nonce is set again and no cipher is opened, which the statistic must see all the same."""
    words, seed = np.zeros(8, dtype=np.uint64), drbg("seed")(32)
    ciphers.party = "client 1"
    worker = masking._Worker([MaskTerm(sign=1, seed=Secret(seed))])
    for offset in (0, 8, CHUNK_WORDS):
        worker.add(words, offset)
    assert ciphers.reused() == set()
    worker.add(words, 8)
    assert ciphers.reused() == {seed}


def _rounding_streams(sources, exchanges=3):
    """Encode for each client and exchange; `sources` gives a client's source of randomness for an exchange."""
    base = ModelState.from_arrays({"weight": np.zeros(2000, np.float32)})
    local = ModelState.from_arrays({"weight": np.full(2000, 0.01, np.float32)})
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
