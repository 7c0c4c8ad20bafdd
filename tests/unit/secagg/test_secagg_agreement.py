"""Key agreement by X25519 and by X25519 with ML-KEM-768: what two parties agree on, and which keys are refused."""

from __future__ import annotations

import hashlib
import itertools

import pytest

from fedcore.errors import ProtocolViolation
from fedcore.secagg import Agreement, BothEnds, Secret
from fedcore.secagg.crypto.agreement import KeyPair, exchange, is_low_order
from fedcore.secagg.crypto.domain import Usage, derive
from fedcore.secagg.crypto.schedule import (
    Transcript,
    open_pair_secret,
    open_shares,
    pair_mask,
    pair_secret,
    seal_pair_secret,
    seal_shares,
)
from tests.support.raising import raises

TRANSCRIPT = Transcript(context=b"c" * 32, cohort=b"l" * 32)
MLKEM_MODULUS = 3329
LOW = [0, 1, 2**255 - 20, 325606250916557431795983626356110631294008115727848805560023387167927233504,
       39382357235489614581723060781553021112529911719440698176882885853963445705823]  # fmt: skip


@pytest.mark.parametrize("agreement", Agreement)
def test_two_clients_agree_and_a_third_does_not(drbg, agreement):
    one, two, three = (KeyPair.draw(agreement, drbg(name)) for name in ("one", "two", "three"))
    assert len(one.public) == agreement.public_bytes
    ciphertext, secret = one.encapsulate(two.public)
    assert len(ciphertext) == agreement.ciphertext_bytes
    assert len(secret.reveal()) == (64 if agreement is Agreement.HYBRID else 32)
    assert two.decapsulate(one.public, ciphertext) == secret
    assert three.decapsulate(one.public, ciphertext) != secret
    assert two.decapsulate(three.public, ciphertext) != secret


@pytest.mark.parametrize("agreement", Agreement)
def test_both_ends_in_one_process_agree_on_what_each_would_alone_and_at_half_the_cost(drbg, agreement, monkeypatch):
    made: list[bytes] = []

    def counted(private, own, peer):
        made.append(own)
        return exchange(private, own, peer)

    monkeypatch.setattr("fedcore.secagg.crypto.agreement.exchange", counted)
    both = BothEnds()
    one, two, three = (KeyPair.draw(agreement, drbg(name), both) for name in ("one", "two", "three"))
    alone = KeyPair.from_root(agreement, two.root)
    for _ in range(2):
        ciphertext, secret = one.encapsulate(two.public)
        assert two.decapsulate(one.public, ciphertext) == alone.decapsulate(one.public, ciphertext) == secret
        assert three.decapsulate(one.public, ciphertext) != secret
    assert [made.count(pair.public[:32]) for pair in (one, two, three)] == [1, 0, 1]
    assert "waiting=1" in repr(both)  # for the end of the one with the third; what both have asked for is gone


@pytest.mark.parametrize("agreement", Agreement)
def test_a_pair_is_a_function_of_its_root(agreement):
    one, again = (KeyPair.from_root(agreement, Secret(b"r" * 32)) for _ in range(2))
    other = KeyPair.from_root(agreement, Secret(b"r" * 31 + b"s"))
    assert one.public == again.public != other.public
    ciphertext, secret = other.encapsulate(one.public)
    assert again.decapsulate(other.public, ciphertext) == secret


def test_both_agreements_of_a_root_have_the_same_x25519_key_and_neither_is_the_root():
    root = Secret(b"r" * 32)
    alone, hybrid = (KeyPair.from_root(agreement, root) for agreement in Agreement)
    assert hybrid.public[:32] == alone.public
    assert derive(root.reveal(), b"", Usage.KEY_X25519) != root.reveal()


def test_each_half_of_the_hybrid_secret_counts(drbg):
    """Whoever breaks one of the two still has to guess the other: either half changes what is agreed."""
    one, two, other = (KeyPair.draw(Agreement.HYBRID, drbg(name)) for name in ("one", "two", "other"))
    ciphertext, secret = one.encapsulate(two.public)
    for public, altered in (
        (other.public[:32] + one.public[32:], ciphertext),
        (one.public, ciphertext[:-1] + bytes([ciphertext[-1] ^ 1])),
    ):
        assert two.decapsulate(public, altered) != secret
    # ML-KEM's secret comes first, X25519's after it.
    half = two.decapsulate(other.public, ciphertext).reveal()
    assert half[:32] == secret.reveal()[:32]
    assert half[32:] != secret.reveal()[32:]


def test_an_altered_ciphertext_is_rejected_implicitly_under_the_second_seed(drbg):
    """FIPS 203, algorithm 18: the secret is then SHAKE-256(z || c), which needs a z of its own."""
    one, two = (KeyPair.draw(Agreement.HYBRID, drbg(name)) for name in ("one", "two"))
    ciphertext = bytes(1) + one.encapsulate(two.public)[0][1:]
    z = derive(two.root.reveal(), b"", Usage.KEY_MLKEM, "z")
    rejected = two.decapsulate(one.public, ciphertext).reveal()[:32]
    assert rejected == hashlib.shake_256(z + ciphertext).digest(32)
    assert z != derive(two.root.reveal(), b"", Usage.KEY_MLKEM, "d")


def test_encapsulation_is_fresh_each_time(drbg):
    one, two = (KeyPair.draw(Agreement.HYBRID, drbg(name)) for name in ("one", "two"))
    (first, secret), (second, other) = one.encapsulate(two.public), one.encapsulate(two.public)
    assert first != second
    assert secret != other


@pytest.mark.parametrize("point", LOW)
def test_low_order_points_in_every_encoding(drbg, point):
    """Each of them makes the agreement zero, which a pair refuses, so the list holds nothing too much."""
    pair = KeyPair.draw(Agreement.X25519, drbg("pair"))
    encodings = [value for value in (point, point + 2**255 - 19) if value < 2**255]
    for value, top in itertools.product(encodings, (0, 2**255)):
        public = (value + top).to_bytes(32, "little")
        assert is_low_order(public)
        with pytest.raises(ProtocolViolation, match="low-order-point"):
            Agreement.X25519.check_public(public, 7)
        for agree in (pair.encapsulate, lambda public: pair.decapsulate(public, b"")):
            with pytest.raises(ProtocolViolation, match="low-order-point"):
                agree(public)


@pytest.mark.parametrize("point", LOW)
def test_the_listed_points_have_an_order_that_divides_eight(point):
    """By doubling (RFC 7748, section 5) in the projective line: three times lead from each of them to infinity."""
    prime = 2**255 - 19
    x, z = point, 1
    for _ in range(3):
        square = x * x - z * z
        x, z = square * square % prime, 4 * x * z * (x * x + 486662 * x * z + z * z) % prime
    assert z == 0


def test_ordinary_keys_are_not_of_low_order(drbg):
    randomness = drbg("many")
    assert not any(is_low_order(KeyPair.draw(Agreement.X25519, randomness).public) for _ in range(50))
    for near in (2, 3, 2**255 - 21):
        assert not is_low_order(near.to_bytes(32, "little"))


@pytest.mark.parametrize("agreement", Agreement)
def test_keys_of_another_length(drbg, agreement):
    public = KeyPair.draw(agreement, drbg("pair")).public
    agreement.check_public(public, 7)
    lengths = (
        0,
        31,
        33,
        1183,
        1184,
        1215,
        1217,
        *(other.public_bytes for other in Agreement if other is not agreement),
    )
    for length in lengths:
        with pytest.raises(ProtocolViolation, match="malformed") as caught:
            agreement.check_public((public + bytes(2000))[:length], 7)
        assert caught.value.peer == 7


def _with_coefficient(public: bytes, index: int, value: int) -> bytes:
    """FIPS 203, algorithm 5: twelve bits a coefficient, the least significant first."""
    key = int.from_bytes(public[32 : 32 + 1152], "little")
    key = key & ~(0xFFF << 12 * index) | value << 12 * index
    return public[:32] + key.to_bytes(1152, "little") + public[32 + 1152 :]


@pytest.mark.parametrize("value", [MLKEM_MODULUS, MLKEM_MODULUS + 1, 4095])
@pytest.mark.parametrize("index", [0, 1, 255, 256, 511, 512, 767])
def test_the_modulus_check_of_fips_203(drbg, index, value):
    """Section 7.2: every coefficient of an encapsulation key is below q = 3329."""
    public = KeyPair.draw(Agreement.HYBRID, drbg("pair")).public
    Agreement.HYBRID.check_public(_with_coefficient(public, index, MLKEM_MODULUS - 1), 7)
    with raises(ProtocolViolation, check="malformed", peer=7, match="ML-KEM"):
        Agreement.HYBRID.check_public(_with_coefficient(public, index, value), 7)


# Sealing under an agreed secret


@pytest.mark.parametrize("agreement", Agreement)
@pytest.mark.parametrize("purpose", ["shares", "pair secret"])
def test_what_is_sealed_opens_only_for_its_purpose_pair_round_and_cohort(drbg, agreement, purpose):
    one, two = KeyPair.draw(agreement, drbg("one")), KeyPair.draw(agreement, drbg("two"))
    ends, text = {"sender": 1, "receiver": 2}, b"t" * 32
    if purpose == "shares":
        opens, other = open_shares, open_pair_secret
        sealed = seal_shares(TRANSCRIPT, one, two.public, **ends, text=text)
    else:
        opens, other = open_pair_secret, open_shares
        sealed = seal_pair_secret(TRANSCRIPT, one, two.public, **ends, secret=Secret(text))
    assert len(sealed) == agreement.ciphertext_bytes + 32 + 16
    opened = opens(TRANSCRIPT, two, one.public, **ends, sealed=sealed)
    assert opened in (text, Secret(text))
    assert other(TRANSCRIPT, two, one.public, **ends, sealed=sealed) is None
    for changed in ({"sender": 3}, {"receiver": 3}, {"sender": 2, "receiver": 1}):
        assert opens(TRANSCRIPT, two, one.public, **(ends | changed), sealed=sealed) is None
    for transcript in (
        Transcript(context=b"d" * 32, cohort=TRANSCRIPT.cohort),
        Transcript(context=TRANSCRIPT.context, cohort=b"m" * 32),
        Transcript(context=TRANSCRIPT.cohort, cohort=TRANSCRIPT.context),
    ):
        assert opens(transcript, two, one.public, **ends, sealed=sealed) is None
    for place in range(0, len(sealed), 7):
        altered = sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :]
        assert opens(TRANSCRIPT, two, one.public, **ends, sealed=altered) is None


def test_a_pair_secret_depends_on_everything_and_leads_to_opposite_masks():
    base = {"root": Secret(b"r" * 32), "chooser": 1, "peer": 2}
    variants = [base, base | {"root": Secret(b"s" * 32)}, base | {"chooser": 3}, base | {"peer": 3},
                base | {"chooser": 2, "peer": 1}]  # fmt: skip
    secrets = [pair_secret(TRANSCRIPT, **variant).reveal() for variant in variants]
    secrets.append(pair_secret(Transcript(context=b"d" * 32, cohort=TRANSCRIPT.cohort), **base).reveal())
    secrets.append(pair_secret(Transcript(context=TRANSCRIPT.context, cohort=b"m" * 32), **base).reveal())
    assert len(set(secrets)) == len(secrets)
    chosen = Secret(secrets[0])
    low, high = pair_mask(TRANSCRIPT, chosen, owner=1, peer=2), pair_mask(TRANSCRIPT, chosen, owner=2, peer=1)
    assert low.seed == high.seed
    assert (low.sign, high.sign) == (1, -1)
    assert pair_mask(TRANSCRIPT, chosen, owner=1, peer=3).seed != low.seed
    assert low.seed != chosen
