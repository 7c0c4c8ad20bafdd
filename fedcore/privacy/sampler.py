"""Noise from a cryptographic source: a ChaCha20 key stream inverted through a table.

The server must not be able to predict noise, or it could take it off again; so neither NumPy's nor torch's generators
ever make any, and each use of a key has a nonce of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from fedcore.privacy.tables import NoiseTable

BLOCK: Final = 1 << 15
"""Draws made at a time: their 64-bit words, indices and result fit the second-level cache."""

NOISE: Final = b"dp/noise/v1."
ROUNDING: Final = b"dp/round/v1."
_KEY_BYTES: Final = 32
_COUNTER: Final = bytes(4)
_ONE: Final = np.uint64(1)


class KeyStream:
    """ChaCha20 (RFC 8439) under a fresh key from `randomness(32)`; `usage` ([12] bytes) is its nonce."""

    def __init__(self, randomness: Callable[[int], bytes], usage: bytes) -> None:
        cipher = Cipher(algorithms.ChaCha20(randomness(_KEY_BYTES), _COUNTER + usage), mode=None)
        self._stream = cipher.encryptor()
        self._zeros = b""

    def fill(self, out: NDArray[Any]) -> None:
        """Overwrite `out`, contiguous, of an unsigned integer dtype, with uniform random bits."""
        if len(self._zeros) < out.nbytes:
            self._zeros = bytes(out.nbytes)
        self._stream.update_into(memoryview(self._zeros)[: out.nbytes], out.view(np.uint8).data)


class NoiseSampler:
    """Independent draws from the distribution of a table.

    A draw takes one 64-bit word: the lowest bit is the sign, the others are the first 63 bits of a uniform number U in
    [0, 1). The magnitude is the number of table entries that are at most U. Only where an entry begins with the very
    same 63 bits the next 64 are drawn, so the decision is by 127 bits at the price of 63.
    """

    def __init__(self, table: NoiseTable, randomness: Callable[[int], bytes]) -> None:
        self._table = table
        self._stream = KeyStream(randomness, NOISE)
        self._words = np.empty(BLOCK, np.uint64)

    def draw(self, count: int) -> NDArray[np.int64]:
        """int64 [count], count <= BLOCK."""
        words = self._words[:count]
        self._stream.fill(words)
        signs = (words & _ONE).view(np.int64)
        words >>= _ONE
        drawn = self._magnitudes(words)
        signs *= -2
        signs += 1
        drawn *= signs
        return drawn

    def _magnitudes(self, words: NDArray[np.uint64]) -> NDArray[np.int64]:
        """How many entries are at most U; `words` ([m]) are the first 63 bits of each U."""
        high = self._table.high
        found: NDArray[np.int64] = np.searchsorted(high, words).astype(np.int64, copy=False)
        undecided = np.flatnonzero(high[np.minimum(found, high.size - 1)] == words)
        for place in undecided.tolist():
            found[place] = self._decide(int(words[place]), int(found[place]))
        return found

    def _decide(self, word: int, first: int) -> int:
        """The magnitude where entries from `first` on begin with `word`: 64 more bits of U decide."""
        more = np.empty(1, np.uint64)
        self._stream.fill(more)
        magnitude = first
        while (
            magnitude < self._table.bound
            and self._table.high[magnitude] == word
            and self._table.low[magnitude] <= more[0]
        ):
            magnitude += 1
        return magnitude
