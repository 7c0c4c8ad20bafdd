"""The three kinds of encodings: exact, noised for differential privacy, and bounded with norm proofs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Discriminator, Tag

from fedcore.codec.bounded.parameters import BoundedEncoding
from fedcore.codec.encoding import Encoding
from fedcore.codec.privacy import Release
from fedcore.codec.privacy.parameters import PrivateEncoding


def _kind(value: object) -> str:
    if isinstance(value, PrivateEncoding) or (isinstance(value, Mapping) and "release" in value):
        return "noised"
    bounded = isinstance(value, BoundedEncoding) or (isinstance(value, Mapping) and "projections" in value)
    return "bounded" if bounded else "exact"


AnyEncoding = Annotated[
    Annotated[Encoding, Tag("exact")]
    | Annotated[PrivateEncoding, Tag("noised")]
    | Annotated[BoundedEncoding, Tag("bounded")],
    Discriminator(_kind),
]


def release_of(encoding: AnyEncoding | None) -> Release | None:
    """What a sum with this encoding reveals under differential privacy; None if it has none."""
    return encoding.release if isinstance(encoding, PrivateEncoding) else None
