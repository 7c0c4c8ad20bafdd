"""What scales and statistics tell of single clients: two attacks that came through before there was a rule."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.codec_scales import (
    CLIENTS,
    COHORTS,
    Answer,
    even_scales,
    exponents_told,
    lone_elements,
    ruled_scales,
    scan,
    single_elements,
)
from fedcore.codec import CodecSettings, first_encoding
from fedcore.codec.scaling.ladder import SMALL_LADDER
from fedcore.state import ModelState


@pytest.fixture(scope="module")
def updates() -> np.ndarray:
    """Three hospitals of different sizes."""
    rng = np.random.default_rng(1)
    return (rng.standard_normal((CLIENTS, 1100)) * np.array([[0.01], [0.006], [0.004]])).astype(np.float32)


def test_a_scan_of_scales_was_worth_it(updates: np.ndarray) -> None:
    assert single_elements(updates, scan(updates, even_scales(updates, 30), answer="clip")) > 0.7
    # Powers of two alone would not have stopped it.
    assert single_elements(updates, scan(updates, ruled_scales(updates, 8), answer="clip")) > 0.5


@pytest.mark.parametrize("answer", ["refuse", "lock"])
def test_a_scan_of_scales_is_empty_handed(updates: np.ndarray, answer: Answer) -> None:
    assert single_elements(updates, scan(updates, ruled_scales(updates, 8), answer=answer)) < 0.005


def test_lone_elements_are_not_told_by_the_statistics() -> None:
    """With the sum, that of magnitudes and that of fourth powers, half of all triples came out; rounded, not one value.

    Now there is no such sum of a small tensor.
    """
    before, rounded = lone_elements(np.random.default_rng(1).standard_normal((200, CLIENTS)))
    assert before > 70
    assert rounded == 0
    arrays = {"lone": np.zeros(1), "other": np.zeros(5)}
    encoding = first_encoding(CodecSettings(), ModelState.from_arrays(arrays).layout, CLIENTS)
    assert encoding.ladders == (SMALL_LADDER,), "one for both, of one rung: whether the scale is exceeded"


def test_exponents_are_not_told_but_the_largest() -> None:
    rounded, laddered = exponents_told(np.random.default_rng(1))
    assert rounded > COHORTS / 3
    assert laddered <= COHORTS / 20
