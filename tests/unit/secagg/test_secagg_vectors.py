"""Published vectors, through our own functions wherever these can be given the published input."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from support import secagg_vectors

from fedcore.errors import ProtocolViolation
from fedcore.secagg import Agreement, MaskTerm, Secret, apply_masks
from fedcore.secagg.crypto.agreement import KeyPair
from fedcore.secagg.crypto.keys import sign, verifies

VECTORS = Path(__file__).parents[2] / "vectors"


def _load(name, group):
    entries = json.loads((VECTORS / name).read_text())[group]
    return [pytest.param(_bytes(entry), id=entry["section"]) for entry in entries]


def _bytes(entry):
    return {key: bytes.fromhex(v) if isinstance(v, str) and key != "section" else v for key, v in entry.items()}


@pytest.mark.parametrize("case", _load("rfc8439.json", "keystream"))
def test_mask_stream_is_chacha20(case):
    words = np.zeros(len(case["keystream"]) // 8, dtype=np.uint64)
    apply_masks(words, [MaskTerm(sign=1, seed=Secret(case["key"]))])
    assert words.astype("<u8").tobytes() == case["keystream"]


@pytest.mark.parametrize("case", _load("rfc8439.json", "encryption"))
def test_counter_and_nonce_are_laid_out_as_we_assume(case):
    layout = case["counter"].to_bytes(4, "little") + case["nonce"]
    cipher = Cipher(algorithms.ChaCha20(case["key"], layout), mode=None).encryptor()
    assert cipher.update(case["plaintext"]) == case["ciphertext"]


@pytest.mark.parametrize("case", _load("rfc8439.json", "aead"))
def test_aead(case):
    cipher = ChaCha20Poly1305(case["key"])
    assert cipher.encrypt(case["nonce"], case["plaintext"], case["associated"]) == case["sealed"]


@pytest.mark.parametrize("case", _load("rfc5869.json", "sha256"))
def test_hkdf(case):
    kdf = HKDF(algorithm=SHA256(), length=len(case["output"]), salt=case["salt"], info=case["info"])
    assert kdf.derive(case["secret"]) == case["output"]


def _pair(x25519: bytes, mlkem: bytes = b"") -> KeyPair:
    """A pair with a given private key, which no root leads to; `mlkem` are FIPS 203's two seeds."""
    private = X25519PrivateKey.from_private_bytes(x25519)
    post_quantum = MLKEM768PrivateKey.from_seed_bytes(mlkem) if mlkem else None
    public = private.public_key().public_bytes_raw()
    if post_quantum:
        public += post_quantum.public_key().public_bytes_raw()
    return KeyPair(
        agreement=Agreement.HYBRID if mlkem else Agreement.X25519,
        public=public,
        root=Secret(bytes(32)),
        _x25519=private,
        _mlkem=post_quantum,
    )


@pytest.mark.parametrize("case", _load("rfc7748.json", "multiplication"))
def test_x25519(case):
    assert _pair(case["scalar"]).decapsulate(case["point"], b"").reveal() == case["product"]


@pytest.mark.parametrize("case", _load("rfc7748.json", "agreement"))
def test_x25519_agreement(case):
    own, peer = _pair(case["private"]), _pair(case["peer_private"])
    assert (own.public, peer.public) == (case["public"], case["peer_public"])
    ciphertext, agreed = own.encapsulate(peer.public)
    assert ciphertext == b""
    assert agreed.reveal() == peer.decapsulate(own.public, b"").reveal() == case["agreed"]


@pytest.mark.parametrize("case", _load("xwing.json", "decapsulation"))
def test_hybrid_decapsulation(case):
    """X-Wing's two shared secrets are what our hybrid decapsulation gives; its combiner (section 5.3) is another."""
    expanded = hashlib.shake_256(case["seed"]).digest(96)
    pair = _pair(expanded[64:], expanded[:64])
    assert pair.public[32:] + pair.public[:32] == case["public"]
    ciphertext, ephemeral = case["ciphertext"][:1088], case["ciphertext"][1088:]
    secrets = pair.decapsulate(ephemeral, ciphertext).reveal()
    label = bytes.fromhex("5c2e2f2f5e5c")
    combined = hashlib.sha3_256(secrets + ephemeral + pair.public[:32] + label).digest()
    assert combined == case["secret"]


@pytest.mark.parametrize("case", _load("rfc8032.json", "signatures"))
def test_ed25519(case):
    identity = Ed25519PrivateKey.from_private_bytes(case["private"])
    assert identity.public_key().public_bytes_raw() == case["public"]
    assert sign(identity, case["message"]) == case["signature"]
    assert verifies(case["public"], case["signature"], case["message"])
    assert not verifies(case["public"], case["signature"], case["message"] + b"x")
    assert not verifies(bytes(31) + b"\x02", case["signature"], case["message"])


# Our own: secagg_v3.json, which was made without fedcore

ROUNDS = [record["name"] for record in secagg_vectors.load()["rounds"]]
REFUSED = [
    pytest.param(record["name"], entry, id=f"{record['name']}-{entry['step']}-{entry['check']}")
    for record in secagg_vectors.load()["rounds"]
    for entry in record["refused"]
]


def _assert_equal(cases):
    assert cases
    for case in cases:
        assert case.got == case.expected, f"{case.step}: {case.what}"


@pytest.mark.parametrize("part", secagg_vectors.PARTS)
def test_parts(part):
    _assert_equal(list(secagg_vectors.PARTS[part]()))


@pytest.mark.parametrize("step", secagg_vectors.STEPS[:-1])
@pytest.mark.parametrize("name", ROUNDS)
def test_rounds(name, step):
    _assert_equal([case for case in secagg_vectors.replayed(name) if case.step == step])


@pytest.mark.parametrize("name", ["full", "hybrid"])
def test_complaints(name):
    cases = secagg_vectors.complaints(name)
    _assert_equal(cases)
    assert {case.expected[1] for case in cases if case.step == "verdict"} == {
        "sealed-garbage", "inconsistent-dealing", "false-complaint"
    }  # fmt: skip


@pytest.mark.parametrize(("name", "entry"), REFUSED)
def test_refused_messages(name, entry):
    call = secagg_vectors.refusal(name, entry)
    with pytest.raises(ProtocolViolation) as caught:
        call()
    assert caught.value.check == entry["check"]


def test_how_many_vectors_there_are():
    """So that a part that comes to nothing does not pass for one that is right."""
    counts = secagg_vectors.count()
    assert min(counts.values()) > 2
    assert counts["all"] > 900
