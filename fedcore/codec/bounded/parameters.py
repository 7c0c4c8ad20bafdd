"""The public parameters of an exchange with norm proofs, identical on the server and on every client.

A vector is one 32-bit lane for each coordinate, two to a 64-bit word, and behind them the pads of the proof, one word
for each projection. Every client weighs 1, the scale follows from the clipping norm alone, and nothing else is in a
vector: the number of examples, the metrics of training and integer tensors have no bound that anybody could prove.

The last coordinate says whether a client contributes nothing: such a one sends the bound there and zero everywhere
else, any other zero there. So its norm is within the same bound, and the sum tells how many failed.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Literal

from pydantic import StrictFloat, StrictInt

from fedcore.codec.bounded.grid import LANE_BITS, LANES
from fedcore.codec.encoding import PlainLayout, hash_of_parts
from fedcore.codec.names import MetricName
from fedcore.codec.privacy import grid_scale, rounded_norm_squared
from fedcore.codec.settings import CodecSettings
from fedcore.errors import EncodingError
from fedcore.state import Layout, TensorSpec
from fedcore.system.plain_json import NO_OTHER_KEYS

PROJECTIONS = 1024
"""Random projections of an update whose squares are summed; the more, the closer their sum is to its norm."""
_MAX_CLIENTS = 1 << 16
_DOMAIN = b"fedcore/codec/bounded-encoding/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedEncoding:
    """How one exchange turns updates into words, whose norm is proved, and back.

    field_bits
        Width of one coordinate.
    clip
        L2 bound on the update.
    projections
        Of the proof, each with a word behind the coordinates.

    Raises EncodingError for parameters whose sum could wrap, and for models with integer tensors.
    """

    __pydantic_config__ = NO_OTHER_KEYS

    settings: CodecSettings
    layout: PlainLayout
    n_max: StrictInt
    field_bits: Literal[32]
    clip: StrictFloat
    projections: StrictInt

    def __post_init__(self) -> None:
        if type(self.n_max) is not int or not 1 <= self.n_max <= _MAX_CLIENTS:
            raise EncodingError(f"n_max is {self.n_max!r}; use a whole number from 1 to {_MAX_CLIENTS}")
        if type(self.clip) is not float or not 0 < self.clip < math.inf:
            raise EncodingError(f"the clipping bound is {self.clip!r}; use a number greater than 0")
        if type(self.projections) is not int or self.projections != PROJECTIONS:
            raise EncodingError(f"a norm proof has {PROJECTIONS} projections, not {self.projections!r}")
        if self.layout.integers:
            raise EncodingError(
                f"integer tensor {self.layout.integers[0].name!r} cannot be trained with norm proofs, which bound "
                "floating point tensors alone. Keep it out of the model's state (for instance, GroupNorm in place of "
                "BatchNorm)",
                check="integer-tensor",
            )
        if self.n_max * 2 * self.offset >= 1 << LANE_BITS:
            raise EncodingError(
                f"a sum of {self.n_max} updates could wrap in {LANE_BITS} bits; lower the cohort size",
                check="bounded-sum-wraps",
            )

    @property
    def metrics(self) -> tuple[MetricName, ...]:
        """None: those of training are not in the sum."""
        return ()

    @property
    def floats(self) -> tuple[TensorSpec, ...]:
        """The tensors, in order; their elements are the first coordinates."""
        return self.layout.floats

    @property
    def coordinates(self) -> int:
        """Elements of the model, and the coordinate of failures."""
        return sum(spec.size for spec in self.floats) + 1

    @property
    def scale(self) -> int:
        """Steps in the clipping norm."""
        return grid_scale(self.coordinates)

    @property
    def norm_squared(self) -> int:
        """Largest squared norm of an update after rounding, in steps: what a client proves."""
        return rounded_norm_squared(self.scale, self.coordinates)

    @property
    def offset(self) -> int:
        """Added to each coordinate, so that none is negative: the largest magnitude that one can have."""
        return math.isqrt(self.norm_squared)

    @property
    def packed_words(self) -> int:
        """Words that hold the coordinates."""
        return -(-self.coordinates // LANES)

    @property
    def words(self) -> int:
        """Length of the vector in 64-bit words, the pads of the proof included."""
        return self.packed_words + self.projections

    @property
    def step(self) -> float:
        """Size of one step, in units of the update."""
        return self.clip / self.scale

    def canonical(self) -> bytes:
        """SHA-256 over every parameter, unambiguous; it goes into the protocol's ctx."""
        parts = [
            self.settings.canonical(),
            struct.pack(">II", self.n_max, self.projections),
            self.layout.digest(),
            struct.pack(">d", self.clip),
        ]
        return hash_of_parts(_DOMAIN, parts)


def bounded_encoding(settings: CodecSettings, layout: Layout, n_max: int, *, clip: float) -> BoundedEncoding:
    """The encoding of a training of up to `n_max` clients, each of which proves that it kept to `clip`."""
    return BoundedEncoding(
        settings=settings, layout=layout, n_max=n_max, field_bits=LANE_BITS, clip=clip, projections=PROJECTIONS
    )
