"""How well one number tells two kinds of exchanges apart."""

from __future__ import annotations

from benchmarks.timing_channel import told_apart


def test_what_never_overlaps_is_told_apart_for_certain() -> None:
    assert told_apart([1.0, 2.0], [3.0, 4.0]) == told_apart([3.0, 4.0], [1.0, 2.0]) == 1.0


def test_equals_are_guessed() -> None:
    assert told_apart([1.0, 1.0], [1.0, 1.0]) == told_apart([1.0, 4.0], [2.0, 3.0]) == 0.5
