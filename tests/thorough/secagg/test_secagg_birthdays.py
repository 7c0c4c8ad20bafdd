"""Streams of masks, so many that seeds of 32 bits would collide."""

from __future__ import annotations

import hashlib

import numpy as np
from support.seed_folds import FOLDS

from fedcore.secagg import MaskTerm, Secret
from fedcore.secagg.crypto import masking


def test_there_are_more_than_2_to_the_32_streams():
    """Birthdays: whatever folds its seeds to 32 bits, n of them have about n^2 / 2^33 collisions, here 4.7."""
    raw = hashlib.shake_256(b"birthdays").digest(32 * 200_000)
    # Without the vector around it, which would take most of the time; the tests beside this one have it.
    terms = (MaskTerm(sign=1, seed=Secret(raw[place : place + 32])) for place in range(0, len(raw), 32))
    starts = {masking._Stream(term).seek(0).update(bytes(16)) for term in terms}
    assert len(starts) == 200_000
    seeds = np.frombuffer(raw, np.uint8).reshape(-1, 32)
    for name, fold in FOLDS.items():
        # The streams of a fold collide exactly where the fold does, and need not be made.
        assert len(np.unique(fold(seeds))) < len(seeds), name
