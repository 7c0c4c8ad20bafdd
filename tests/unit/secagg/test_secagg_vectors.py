"""Published vectors, through our own functions wherever these can be given the published input."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedcore.secagg import MaskTerm, Secret, apply_masks
from fedcore.secagg.keys import KeyPair, sign, verifies

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


@pytest.mark.parametrize("case", _load("rfc7748.json", "multiplication"))
def test_x25519(case):
    assert KeyPair.from_private(case["scalar"]).agree(case["point"]).reveal() == case["product"]


@pytest.mark.parametrize("case", _load("rfc7748.json", "agreement"))
def test_x25519_agreement(case):
    own, peer = KeyPair.from_private(case["private"]), KeyPair.from_private(case["peer_private"])
    assert (own.public, peer.public) == (case["public"], case["peer_public"])
    assert own.agree(peer.public).reveal() == peer.agree(own.public).reveal() == case["agreed"]


@pytest.mark.parametrize("case", _load("rfc8032.json", "signatures"))
def test_ed25519(case):
    identity = Ed25519PrivateKey.from_private_bytes(case["private"])
    assert identity.public_key().public_bytes_raw() == case["public"]
    assert sign(identity, case["message"]) == case["signature"]
    assert verifies(case["public"], case["signature"], case["message"])
    assert not verifies(case["public"], case["signature"], case["message"] + b"x")
    assert not verifies(bytes(31) + b"\x02", case["signature"], case["message"])


def test_our_own_vectors_have_not_moved():
    """The bytes of version 1: whatever changes them is a new version of the protocol."""
    maker = runpy.run_path(str(VECTORS / "make_secagg_v1.py"))
    assert maker["build"]() == json.loads((VECTORS / "secagg_v1.json").read_text())
