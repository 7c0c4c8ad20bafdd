"""An encoding as a peer sees it inside a task, in plain JSON, and what it is taken for."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from fedcore.codec import AnyEncoding, Encoding, PrivateEncoding
from fedcore.plain_json import from_plain, to_plain

_EXACT, _NOISED = TypeAdapter(Encoding), TypeAdapter(PrivateEncoding)


def encoding_to_json(encoding: AnyEncoding) -> dict[str, Any]:
    """The parameters as an object for `json.dumps`."""
    if isinstance(encoding, PrivateEncoding):
        return to_plain(_NOISED, encoding)
    return to_plain(_EXACT, encoding)


def encoding_from_json(data: dict[str, Any]) -> AnyEncoding:
    """The inverse; raises EncodingError."""
    if "release" in data:
        return from_plain(_NOISED, data, what="the encoding")
    return from_plain(_EXACT, data, what="the encoding")
