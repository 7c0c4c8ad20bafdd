"""A device encodes an update until it fails: what leaves is one vector, the processor's, bit for bit."""

from __future__ import annotations

import math
import random
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the extra gpu is not installed")

from support.lost_device import LostDevice

from client_app.exchange import update_encoder
from client_app.exchange.update_encoder import UpdateEncoder, describe_encoder
from fedcore.codec import AnyEncoding, CodecSettings, Encoding, encode, encode_nothing, private_encoding
from fedcore.codec.encoding import scale_groups
from fedcore.codec.privacy import PrivacyPlan
from fedcore.errors import EncodingError
from fedcore.secagg import MaskTerm, Secret, apply_masks
from fedcore.state import ModelState

PART_WORDS = 100
TERMS = [MaskTerm(sign=1, seed=Secret(b"a" * 32)), MaskTerm(sign=-1, seed=Secret(b"b" * 32))]
CALLS = (("open", 0), ("load", 0), ("round_to", 0), ("apply_masks", 0), ("apply_masks", 3))
"""Where a device is lost, and how many such calls went well."""


def model(seed: int) -> ModelState:
    rng = np.random.default_rng(seed)
    sizes = {"weight": 1501, "bias": 7, "matrix": 1200}
    return ModelState.from_arrays({name: rng.standard_normal(size, np.float32) for name, size in sizes.items()})


BASE, LOCAL = model(1), model(2)


def plain(**changes: Any) -> Encoding:
    scales = (changes.pop("scale", 64.0),) * len(scale_groups(BASE.layout))
    settings = CodecSettings(w_max=10, **changes)
    return Encoding(settings=settings, layout=BASE.layout, n_max=3, field_bits=16, scales=scales, failures=1)


def noised() -> AnyEncoding:
    plan = PrivacyPlan(
        mechanism="skellam", noise_multiplier=1.0, clip_norm=1.0, metric_bound=0.0, epsilon=math.inf, delta=1e-5
    )
    return private_encoding(CodecSettings(w_max=10), BASE.layout, 3, plan=plan, noise_clients=3)


def whole(encoding: AnyEncoding) -> Any:
    return partial(encode, encoding, base=BASE, local=LOCAL, examples=9, metrics={})


@pytest.fixture
def said() -> list[str]:
    return []


def sent(encoder: UpdateEncoder, fill: Any, encoding: AnyEncoding, said: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """What leaves, part by part as it is made; and what is kept for a server that loses parts."""
    words = encoder.encode(fill, encoding.words).words
    parts = []
    for start in range(0, words.size, PART_WORDS):
        part = words[start : start + PART_WORDS]
        encoder.apply_masks(part, TERMS, offset=start)
        parts.append(part.copy())
    encoder.close()
    return np.concatenate(parts), words


def expected(fill: Any) -> np.ndarray:
    words = fill(randomness=random.Random(5).randbytes, device=None).words
    apply_masks(words, TERMS)
    return words


def made_beside(card: LostDevice, fill: Any, encoding: AnyEncoding, said: list[str], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(update_encoder, "open_vector", card.open)
    encoder = UpdateEncoder(gpu=True, randomness=random.Random(5).randbytes, warn=said.append)
    left, kept = sent(encoder, fill, encoding, said)
    np.testing.assert_array_equal(left, expected(fill))
    np.testing.assert_array_equal(kept, left)


@pytest.mark.parametrize(("fails_at", "left"), CALLS)
def test_an_update_leaves_whole_wherever_the_device_is_lost(
    fails_at: str, left: int, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    card = LostDevice(fails_at, left)
    made_beside(card, whole(plain()), plain(), said, monkeypatch)
    assert said[0].endswith("(OutOfMemoryError: CUDA out of memory)")
    assert len(said) == 1 + len(card.opened)  # whatever was opened does not free its memory either


def test_the_device_itself_masks_until_it_is_lost(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PART_WORDS", plain().words // 2)
    made_beside(LostDevice("apply_masks", 1, streams=True), whole(plain()), plain(), said, monkeypatch)
    assert said


def test_a_device_that_keeps_its_memory_ends_nothing(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made_beside(LostDevice("close"), whole(plain()), plain(), said, monkeypatch)
    assert [text.endswith("(OutOfMemoryError: CUDA out of memory)") for text in said] == [True]


def test_a_device_that_serves_is_given_back_without_a_word(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    card = LostDevice("")
    made_beside(card, whole(plain()), plain(), said, monkeypatch)
    assert not said
    assert len(card.opened) == card.given_back == 1


@pytest.mark.parametrize("scale", [64.0, 0.5], ids=["of a scale that fits", "too large, locked by a random mask"])
def test_the_second_making_draws_what_the_first_drew(
    scale: float, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoding = plain(scale=scale)
    made_beside(LostDevice("apply_masks", 1), whole(encoding), encoding, said, monkeypatch)
    assert len(said) == 2


def test_noise_is_not_drawn_twice(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made_beside(LostDevice("apply_masks", 1), whole(noised()), noised(), said, monkeypatch)
    assert said


def test_words_that_add_nothing_survive_the_device_as_well(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made_beside(LostDevice("apply_masks", 1), partial(encode_nothing, plain()), plain(), said, monkeypatch)
    assert said


def test_an_update_that_is_at_fault_is_not_made_again(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_encoder, "open_vector", LostDevice("").open)
    encoder = UpdateEncoder(gpu=True, randomness=random.Random(5).randbytes, warn=said.append)
    encoding = plain()
    with pytest.raises(EncodingError):
        encoder.encode(partial(encode, encoding, base=BASE, local=LOCAL, examples=11, metrics={}), encoding.words)
    assert not said


def test_an_owner_keeps_the_gpu_for_the_training(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    card = LostDevice("")
    monkeypatch.setattr(update_encoder, "open_vector", card.open)
    encoder = UpdateEncoder(gpu=False, randomness=random.Random(5).randbytes, warn=said.append)
    left, _ = sent(encoder, whole(plain()), plain(), said)
    np.testing.assert_array_equal(left, expected(whole(plain())))
    assert not card.opened


def test_the_owner_is_told_where_words_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "64 MiB and more are rounded and masked on a GPU" in describe_encoder(gpu=True)
    assert "(--no-gpu-uploads)" in describe_encoder(gpu=False)
    monkeypatch.setattr(update_encoder, "device_serves_from", lambda: None)
    assert "Triton is not installed" in describe_encoder(gpu=True)
