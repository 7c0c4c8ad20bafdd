"""Noise in the numbers of a query that protects each row of the clients: a share of it is added by every client.

The message of the query states the noise, so that owners can compare it with their policies before anything is computed
(`fedcore.federation.admission.privacy`). Neighbours are two tables of one client, one of which has a row more. What one
row changes in the numbers is whole, and its L2 norm is at most `release.scale`: the app that answers checks that.

Each attempt at a sum gets new noise, also if the app's reply is that of an earlier attempt: with the same noise in two
sums over different clients, their difference would hold that of a few alone. A client whose app failed adds its share
to zeros, so that a sum never holds fewer shares than the message states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from fedcore.codec.privacy.accounting import Release
from fedcore.codec.privacy.noise import BLOCK, Mechanism, NoiseSampler, noise_table
from fedcore.errors import EncodingError, UsageError

ROW_MECHANISM: Final[Mechanism] = "skellam"
"""Sums of its shares are Skellam, whatever their number."""
_VARIANCE: Final = "noise-variance"
_KEYS: Final = ("noise-values", "noise-others", _VARIANCE, "noise-shares", "noise-scale", "noise-numbers")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryNoise:
    """What a client adds to its reply.

    values: the name of the list of numbers that gets the noise; `release.dimension` is its length.
    others: names of the numbers that get none, and depend on no row.
    release: what the sum reveals of a row.
    """

    values: str
    others: tuple[str, ...] = ()
    release: Release

    @classmethod
    def stated(cls, configs: Mapping[str, Mapping[str, Any]]) -> Self | None:
        """What a query's message states, None if it states no noise; raises EncodingError for what is no noise.

        Args:
            configs: the message's records.
        """
        stating = [one for one in configs.values() if any(key in one for key in _KEYS)]
        if not stating:
            return None
        if len(stating) > 1 or not all(key in stating[0] for key in _KEYS):
            raise EncodingError("the query states only a part of its noise, or states it twice", check="query-noise")
        values, others, variance, shares, scale, numbers = (stating[0][key] for key in _KEYS)
        if not isinstance(values, str) or not isinstance(others, str) or not isinstance(variance, int | float):
            raise EncodingError(
                "the query states its noise in a form that this version cannot read", check="query-noise"
            )
        release = Release(
            mechanism=ROW_MECHANISM, variance=float(variance), shares=shares, scale=scale, dimension=numbers
        )
        return cls(values=values, others=tuple(others.split()), release=release)

    def as_config(self) -> dict[str, str | int | float]:
        """The inverse of `stated`: what the message says."""
        one = self.release
        parts = (self.values, " ".join(self.others), one.variance, one.shares, one.scale, one.dimension)
        return dict(zip(_KEYS, parts, strict=True))

    def added_to(self, numbers: Mapping[str, Any], randomness: Callable[[int], bytes]) -> dict[str, Any]:
        """The numbers of a reply with this client's share; raises UsageError if they are not those that get it.

        Args:
            numbers: by their names.
            randomness: gives secret random bytes.
        """
        values = numbers.get(self.values)
        if not isinstance(values, list) or len(values) != self.release.dimension or set(numbers) - self._names:
            raise UsageError("the reply to the query does not hold the numbers that its message states")
        return {**numbers, self.values: (np.asarray(values, np.float64) + self._drawn(randomness)).tolist()}

    def alone(self, randomness: Callable[[int], bytes]) -> dict[str, Any]:
        """What a client sends whose app failed: its share of the noise, and zeros."""
        return {self.values: self._drawn(randomness).astype(np.float64).tolist(), **dict.fromkeys(self.others, 0.0)}

    @property
    def _names(self) -> set[str]:
        return {self.values, *self.others}

    def _drawn(self, randomness: Callable[[int], bytes]) -> NDArray[np.int64]:
        sampler = NoiseSampler(noise_table(self.release.mechanism, self.release.variance), randomness)
        size = self.release.dimension
        return np.concatenate([sampler.draw(min(BLOCK, size - start)) for start in range(0, size, BLOCK)])
