"""Ways to lose most of a seed, which a statistic of its streams has to notice."""

from __future__ import annotations

import hashlib
import zlib

import numpy as np

FOLDS = {
    "low word": lambda seeds: seeds.view("<u4")[:, 0],
    "xor of words": lambda seeds: np.bitwise_xor.reduce(seeds.view("<u4"), axis=1),
    "crc": lambda seeds: np.array([zlib.crc32(seed) for seed in seeds], dtype="<u4"),
    "hash": lambda seeds: np.array([int.from_bytes(hashlib.sha256(seed).digest()[:4]) for seed in seeds], dtype="<u4"),
}
"""How seeds, uint8 [n, 32], become 32 bits each. A fold's streams are hidden behind a hash, and each looks perfect."""
