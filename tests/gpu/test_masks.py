"""Masks that a device adds: the processor's streams, bit for bit, wherever a range begins and ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="the extra gpu is not installed")

from support.on_device import DEVICE, vector_of, words_of
from support.raising import raises

from fedcore.codec.gpu.device import LEAST_WORDS, open_vector
from fedcore.errors import UsageError
from fedcore.secagg import MaskTerm, Secret, apply_masks
from fedcore.secagg.crypto.masking import CHUNK_WORDS

# RFC 8439, appendix A.1, test vectors 1 and 2: the keystream of a key of zeros, block counters 0 and 1.
ZERO_KEY = (
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
    "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
)


def _terms(*signs: int) -> list[MaskTerm]:
    return [MaskTerm(sign=sign, seed=Secret(bytes([number]) * 32)) for number, sign in enumerate(signs, 1)]


def masked_on_device(words: np.ndarray, terms: list[MaskTerm], *, at: int = 0) -> np.ndarray:
    """`words`, masked by the device as the words from `at` on of a vector."""
    masked = np.full(words.size, 7, np.uint64)
    whole = np.zeros(at + words.size, np.uint64)
    whole[at : at + words.size] = words
    vector_of(whole).apply_masks(masked, terms, offset=at)
    return masked


def test_the_stream_is_that_of_rfc_8439():
    words = masked_on_device(np.zeros(16, np.uint64), [MaskTerm(sign=1, seed=Secret(bytes(32)))])
    assert words.tobytes().hex() == ZERO_KEY


@pytest.mark.parametrize(("at", "count"), [(3, 1), (1021, 30)])
def test_any_range_is_masked_as_by_the_processor(at, count):
    words = np.random.default_rng(at).integers(0, 2**64, count, dtype=np.uint64)
    on_device = masked_on_device(words, _terms(1, -1), at=at)
    apply_masks(words, _terms(1, -1), offset=at)
    np.testing.assert_array_equal(on_device, words)


@pytest.mark.parametrize("chunk", [1, 2**32], ids=["a chunk's end", "beyond 2^32 chunks"])
def test_the_nonce_follows_the_chunk(chunk):
    """A counter that went on instead of the nonce, or a nonce cut to 32 bits, would differ after the fourth word."""
    words, first = np.zeros(9, np.uint64), chunk * CHUNK_WORDS - 4
    masked = torch.zeros(9, dtype=torch.int64, device=DEVICE)
    vector_of(0).add_streams(masked, _terms(-1), first, CHUNK_WORDS * 8)
    apply_masks(words, _terms(-1), offset=first)
    np.testing.assert_array_equal(masked.cpu().numpy().view(np.uint64), words)


def test_a_range_leaves_the_words_beside_it():
    words = np.arange(40, dtype=np.uint64)
    vector = vector_of(words)
    vector.add_masks(_terms(1), 9, 20)
    apply_masks(words[9:20], _terms(1), offset=9)
    np.testing.assert_array_equal(words_of(vector, 40), words)


@pytest.mark.parametrize(("at", "count"), [(0, 9), (-1, 2), (8, 1)])
def test_words_outside_the_vector_are_refused(at, count):
    with raises(UsageError, check="foreign-words"):
        vector_of(8).apply_masks(np.zeros(count, np.uint64), [], offset=at)


def test_a_short_vector_stays_on_the_host():
    assert open_vector(LEAST_WORDS - 1) is None
