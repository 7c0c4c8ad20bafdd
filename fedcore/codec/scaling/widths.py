"""How wide the fields of an encoding are, and how many levels a value has in them."""

from __future__ import annotations

from fedcore.codec.settings import FIELD_BITS, NARROW_BITS, CodecSettings, over_float32
from fedcore.errors import EncodingError

LEAST_LEVELS = 7
"""A value is one of 15 numbers at least. With fewer the rounding adds more to an update than there is of it."""

WIDEST_BITS = 64
"""The widest fields, whose steps are fine enough for any update."""

FIRST_SCALE = 1.0
"""The scale of large tensors while nothing is known of magnitudes, if a sum beyond it is asked for again."""

GENEROUS_SCALE = 2.0**4
"""The same if no sum is asked for again, or fields have 64 bits anyway."""

FIRST_SMALL_SCALE = 2.0**32
"""That of small ones, whose steps are fine enough at any."""

WIDE_BITS = 32
"""Width of the fields of large tensors if narrow ones would be coarse, and while nothing is known of magnitudes."""

FIRST_VALUE_BITS = 24
"""Bits that a client's value needs then, so that updates of 10^-5 of the scale keep their digits."""

SMALL_BITS = WIDEST_BITS
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
    return 1 << value_bits - 2 if field_bits == WIDEST_BITS else (1 << value_bits - 1) - 1


def first_form(settings: CodecSettings, n_max: int) -> tuple[int, float]:
    """Width of fields and scale of large tensors while nothing is known of magnitudes, in a sum of `n_max` clients.

    The fields are wider than the settings say. They have 32 bits, half of what 64 cost, if a sum for which scale or
    steps are too small is asked for again in wider ones.
    """
    has_room = WIDE_BITS - carry_bits(n_max) >= FIRST_VALUE_BITS
    if has_room and settings.field_bits < WIDE_BITS and settings.clipping == "repeat":
        return WIDE_BITS, FIRST_SCALE
    return WIDEST_BITS, GENEROUS_SCALE


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
