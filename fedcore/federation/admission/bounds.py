"""A name for everything that decides how a sum is rounded and bounded, which the ledger keeps for good.

It is a hash over the JSON of these parameters alone, so it does not change if the codec encodes them differently.
Earlier versions hashed the codec's canonical form; their ledgers are still understood.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pydantic import TypeAdapter

from fedcore.codec import AnyEncoding, BoundedEncoding, Encoding
from fedcore.codec.scaling.widths import WIDE_BITS, WIDEST_BITS
from fedcore.codec.settings import NARROW_BITS
from fedcore.federation.transcript.legacy_encodings import legacy_canonical
from fedcore.system.plain_json import to_plain

BOUNDS_TAG: Final = "fedcore/bounds/v1"
_FORM: Final[TypeAdapter[Any]] = TypeAdapter(AnyEncoding)


def scales_and_bounds(encoding: AnyEncoding) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """The scales if they may change, and the names of all else that decides how a sum is rounded and bounded.

    The first name is the one to keep; the others are what earlier versions called the same. The names of the metrics,
    and when the sum opens, are no part of that: if it stayed closed, the same clients may be asked again with room
    for those that failed. Nor are the width of the fields and the size of the cohort.
    """
    if isinstance(encoding, BoundedEncoding):
        return (), _names(replace(encoding, n_max=1))
    if not isinstance(encoding, Encoding):
        return (), _names(encoding)
    alike = replace(encoding, metrics=None, failures=0)
    if encoding.settings.clipping == "warn":
        return (), (*_names(replace(alike, field_bits=WIDEST_BITS)), *_names(alike)[1:])
    # With field-bits = "auto" those of the settings too follow from the size of the cohort.
    bits = NARROW_BITS if encoding.settings.compresses else WIDE_BITS
    mended = replace(alike, n_max=1, field_bits=encoding.settings.field_bits, scales=(1.0,) * len(encoding.scales))
    # The two at once: fields are never narrower than the settings say.
    first = replace(mended, field_bits=bits, settings=replace(encoding.settings, field_bits=bits))
    # dbcbb8e kept the width that the settings say.
    return encoding.scales, (*_names(first), *_names(mended)[1:])


def _names(encoding: AnyEncoding) -> tuple[str, ...]:
    plain = to_plain(_FORM, encoding)
    return _name(plain), *(name.hex() for name in legacy_canonical(plain))


def _name(plain: Mapping[str, Any]) -> str:
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(f"{BOUNDS_TAG}\x00{text}".encode("ascii")).hexdigest()
