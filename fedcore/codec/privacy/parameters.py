"""The public parameters of an exchange with differential privacy, identical on the server and on every client.

A vector is one 32-bit lane for each coordinate, two to a 64-bit word. Nothing else is
in it. What the encoding without noise sends in addition to the update (examples, metrics of training, sizes, counts of
clipped elements, integer tensors) is about single clients and would need noise of its own; here every client weighs 1,
scales follow from the clipping norm alone, and the number of survivors is public.

The last coordinate says whether a client contributes nothing: such a one sends the bound there and zero everywhere
else, any other zero there. So its norm is within the same bound, and the sum tells how many failed only through noise.

A coordinate is `rounded update + noise share + offset`. Rounded updates are at most isqrt(norm_squared), noise shares
at most the bound of their table, and the offset is the sum of both; so a coordinate is never negative, and n_max of
them stay below 2^32. A configuration for which that does not hold is refused, so no sum can wrap, whatever is drawn.
(Noise beyond the bound has a chance below 2^-127 a draw; it is part of the distance that the accountant takes off
delta.)
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Literal

from pydantic import StrictFloat, StrictInt

from fedcore.codec.bounded.grid import LANE_BITS, LANES
from fedcore.codec.encoding import PlainLayout, hash_of_parts
from fedcore.codec.names import MetricName, check_names, names_json, slot_count
from fedcore.codec.privacy import PrivacyPlan, Release, grid_scale, noise_bound, share_variance
from fedcore.codec.settings import CodecSettings
from fedcore.errors import EncodingError
from fedcore.state import Layout, TensorSpec
from fedcore.system.plain_json import NO_OTHER_KEYS

_MAX_CLIENTS = 1 << 28
_DOMAIN = b"fedcore/codec/private-encoding/v3"
PRIVATE_ENCODING_TAG = _DOMAIN.decode()
"""Likewise, of a noised sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateEncoding:
    """How one exchange turns updates (or metrics, where `layout` is None) into noised words and back.

    field_bits
        Width of one coordinate.
    metrics
        The names of the metrics of an evaluation, in slot order; those of training have no noise and stay out.
    clip
        L2 bound on the update; for metrics, the bound on each of them.
    release
        The noise, and what the sum reveals with it. `release.scale` steps make up `clip`.

    Raises EncodingError for parameters whose sum could wrap, and for models with integer tensors.
    """

    __pydantic_config__ = NO_OTHER_KEYS

    settings: CodecSettings
    layout: PlainLayout | None
    n_max: StrictInt
    field_bits: Literal[32]
    metrics: tuple[MetricName, ...]
    clip: StrictFloat
    release: Release

    def __post_init__(self) -> None:
        if type(self.n_max) is not int or not 1 <= self.n_max <= _MAX_CLIENTS:
            raise EncodingError(f"n_max is {self.n_max!r}; use a whole number from 1 to {_MAX_CLIENTS}")
        if type(self.clip) is not float or not 0 < self.clip < math.inf:
            raise EncodingError(f"the clipping bound is {self.clip!r}; use a number greater than 0")
        if self.layout is not None and self.layout.integers:
            raise EncodingError(
                f"integer tensor {self.layout.integers[0].name!r} cannot be trained with differential privacy: its sum "
                "has no noise. Keep it out of the model's state (for instance, GroupNorm in place of BatchNorm)",
                check="integer-tensor",
            )
        check_names(self.metrics, self.settings.max_metrics)
        if self.layout is not None and self.metrics:
            raise EncodingError("the metrics of training have no noise, so they are in no noised sum")
        if self.release.dimension != self.coordinates:
            raise EncodingError(f"the noise is for {self.release.dimension} coordinates, there are {self.coordinates}")
        if self.release.shares > self.n_max:
            raise EncodingError(
                f"{self.release.shares} noise shares cannot come from {self.n_max} clients", check="noise-shares"
            )
        if self.n_max * 2 * self.offset >= 1 << LANE_BITS:
            raise EncodingError(
                f"a sum of {self.n_max} noised updates could wrap in {LANE_BITS} bits; lower the noise multiplier or "
                "the cohort size",
                check="noised-sum-wraps",
            )

    @property
    def floats(self) -> tuple[TensorSpec, ...]:
        """The tensors, in order; their elements are the coordinates."""
        return self.layout.floats if self.layout else ()

    @property
    def coordinates(self) -> int:
        """Number of noised values: elements of the model, or values of metrics; and the one of failures."""
        return _coordinates(self.layout, self.metrics)

    @property
    def norm_squared(self) -> int:
        """Largest squared norm of an update after rounding, in steps."""
        return self.release.norm_squared

    @property
    def offset(self) -> int:
        """Added to each coordinate, so that none is negative: the largest magnitude that one can have."""
        return math.isqrt(self.norm_squared) + noise_bound(self.release.mechanism, self.release.variance)

    @property
    def packed_words(self) -> int:
        """Words that hold the coordinates."""
        return -(-self.coordinates // LANES)

    @property
    def words(self) -> int:
        """Length of the vector in 64-bit words."""
        return self.packed_words

    @property
    def step(self) -> float:
        """Size of one step of the grid, in units of the update."""
        return self.clip / self.release.scale

    def canonical(self) -> bytes:
        """SHA-256 over every parameter, unambiguous; it goes into the protocol's ctx."""
        release = self.release
        parts = [
            self.settings.canonical(),
            struct.pack(">I", self.n_max),
            self.layout.digest() if self.layout is not None else b"",
            names_json(self.metrics),
            release.mechanism.encode(),
            struct.pack(">ddQQQ", self.clip, release.variance, release.shares, release.scale, release.dimension),
        ]
        return hash_of_parts(_DOMAIN, parts)


def _coordinates(layout: Layout | None, metrics: tuple[MetricName, ...]) -> int:
    return (sum(spec.size for spec in layout.floats) if layout else slot_count(metrics)) + 1


def private_encoding(
    settings: CodecSettings,
    layout: Layout | None,
    n_max: int,
    *,
    plan: PrivacyPlan,
    noise_clients: int,
    metrics: tuple[MetricName, ...] = (),
) -> PrivateEncoding:
    """The encoding of an exchange of up to `n_max` clients under a run's plan.

    `noise_clients` is the smallest number of honest clients that a sum may be made of: the noise of so many shares is
    what the plan promises, and any more survivors only add to it.
    """
    dimension = _coordinates(layout, metrics)
    scale = grid_scale(dimension)
    variance = share_variance(plan.noise_multiplier, scale=scale, dimension=dimension, shares=noise_clients)
    release = Release(
        mechanism=plan.mechanism, variance=variance, shares=noise_clients, scale=scale, dimension=dimension
    )
    clip = plan.clip_norm if layout else plan.metric_bound or 1.0
    return PrivateEncoding(
        settings=settings,
        layout=layout,
        n_max=n_max,
        field_bits=LANE_BITS,
        metrics=metrics,
        clip=clip,
        release=release,
    )
