"""What scales and statistics tell of single clients: two attacks that came through before there was a rule."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.codec_scales import (
    CLIENTS,
    Answer,
    even_scales,
    lone_elements,
    ruled_scales,
    scan,
    single_elements,
)
from fedcore.codec import CodecSettings, first_encoding
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
    """With the sum, that of magnitudes and that of fourth powers, half of all triples came out; now not one value."""
    before, now = lone_elements(np.random.default_rng(1).standard_normal((200, CLIENTS)))
    assert before > 70
    assert now == 0
    arrays = {"lone": np.zeros(1), "other": np.zeros(5)}
    encoding = first_encoding(CodecSettings(), ModelState.from_arrays(arrays).layout, CLIENTS)
    assert encoding.sections["powers"].start == encoding.sections["powers"].stop
    assert len(encoding.scales) == 1, "and the lone element has no statistic of its own"
