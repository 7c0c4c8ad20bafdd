"""How wide the fields of an encoding are, and how many levels a value has in them."""

from __future__ import annotations

from fedcore.codec.settings import FIELD_BITS, NARROW_BITS, over_float32
from fedcore.errors import EncodingError

LEAST_LEVELS = 7
"""A value is one of 15 numbers at least. With fewer the rounding adds more to an update than there is of it."""

FIRST_BITS = 64
"""Width of all fields while nothing is known of magnitudes: a generous scale, and steps finer than any later ones."""

FIRST_SCALE = 2.0**4
"""The scale of large tensors while nothing is known of magnitudes."""

FIRST_SMALL_SCALE = 2.0**32
"""That of small ones, whose steps are fine enough at any."""

WIDE_BITS = 32
"""Width of the fields of large tensors if narrow ones would be coarse."""

SMALL_BITS = FIRST_BITS
"""Width of the fields of small tensors, whatever the others have."""

FRACTION_BITS = 32
"""Width of the fields that hold what those leave of a step."""

MIN_VALUE_BITS = 4
"""The fewest bits for one client's value."""

FINE_BITS = 16
"""Fields from this width on are fine enough for usual updates."""


def levels_of_bits(field_bits: int, n_max: int) -> int:
    """L for fields of `field_bits` bits in a sum of `n_max`; 0 or less if there is no room for a value."""
    if field_bits <= NARROW_BITS:
        return ((1 << field_bits) - 1) // (2 * n_max)
    value_bits = field_bits - carry_bits(n_max)
    if value_bits < MIN_VALUE_BITS:
        return 0
    return 1 << value_bits - 2 if field_bits == FIRST_BITS else (1 << value_bits - 1) - 1


def auto_field_bits(n_max: int, upload_fraction: float) -> int:
    """The width for field-bits = "auto" in a cohort of `n_max`.

    The narrowest that has room for the sum, or if an `upload_fraction` leaves room for more, as wide as that allows
    for all coordinates, up to 16 bits.
    """
    wide_enough = [bits for bits in FIELD_BITS if levels_of_bits(bits, n_max) >= LEAST_LEVELS]
    if not wide_enough:
        raise EncodingError(f"a sum of {n_max} clients fits no field; lower the cohort size", check="cohort-too-large")
    paid = [bits for bits in wide_enough if bits <= FINE_BITS and over_float32(bits) <= upload_fraction]
    return max(paid, default=wide_enough[0])


def carry_bits(n_max: int) -> int:
    """ceil(log2(n_max)): the bits by which a sum of n_max fields may grow."""
    return (n_max - 1).bit_length()
