"""What all messages between clients and a server are made of: their base, and the types of their fields.

Both apps use these models, so the server's OpenAPI schema is what the client really sends. Vectors and models never
travel in them: they are octet streams, named by their SHA-256. Bytes are base64 in JSON, digests are lower-case hex,
times are RFC 3339 in UTC. Every model refuses unknown keys. Sizes are bounded here, before anything is decoded further.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

MAX_COHORT = 10_000
SHA256_HEX = r"^[0-9a-f]{64}$"


def moment(when: float | datetime) -> str:
    """A time in logs, JSON and files: RFC 3339, in UTC, to the millisecond, as 2026-11-28T13:12:53.141Z.

    Args:
        when: seconds since 1970, or with a time zone.
    """
    time = when.astimezone(UTC) if isinstance(when, datetime) else datetime.fromtimestamp(when, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _decode_base64(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise ValueError("expected base64 text")
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        raise ValueError("not valid base64") from None


def _encode_base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


Bytes = Annotated[
    bytes,
    BeforeValidator(_decode_base64),
    PlainSerializer(_encode_base64, return_type=str, when_used="json"),
]
Moment = Annotated[
    AwareDatetime,
    PlainSerializer(moment, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}, mode="serialization"),
]
Key32 = Annotated[Bytes, Field(min_length=32, max_length=32)]
Signature64 = Annotated[Bytes, Field(min_length=64, max_length=64)]
Sha256 = Annotated[str, Field(pattern=SHA256_HEX)]
ClientId = Annotated[int, Field(ge=1, le=2**31 - 1)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
MetricValue = float | list[float]
Scalar = bool | int | float | str


def optional() -> Any:
    """A field that is left out where it is None, since earlier versions do not know it."""
    return Field(None, exclude_if=lambda value: value is None)


class Message(BaseModel):
    """Base of all control messages: frozen, and unknown keys are an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class FirstContact(Message):
    """Base of what two sides say before they know whether they understand each other.

    A later version may say more. What this one does not know of it is not read, so that it can name both versions.
    """

    model_config = ConfigDict(extra="ignore")
