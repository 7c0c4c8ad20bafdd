"""The roster: who belongs to a federation, signed by its authority.

The signature covers a canonical binary encoding, not the JSON text, so that two programs cannot
read one signed roster in two ways. Every field is preceded by its length (8 bytes, big endian), and a
domain tag with a version stands first.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import Field, PlainSerializer, PlainValidator, StrictInt, TypeAdapter

from fedcore.errors import KitError
from fedcore.federation.files import broken, read_text
from fedcore.plain_json import NO_OTHER_KEYS, from_plain, to_plain
from fedcore.secagg.domain import Field as Packable
from fedcore.secagg.domain import pack

ROSTER_TAG: Final = "fedcore/roster/v1"
MAX_CLIENT_ID: Final = 2**31 - 1
# Names go into TOML, URLs of the dashboard and logs; this set needs no quoting in any of them.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_RESTORE = "take the roster.json that the federation's authority signed"


def check_name(name: str, what: str) -> str:
    """Return `name`; KitError unless it is 1 to 64 letters, digits, dots, dashes or underscores."""
    if not _NAME.fullmatch(name):
        raise KitError(
            f"{what} {name!r} must be 1 to 64 letters, digits, dots, dashes or underscores, "
            "with a letter or digit at each end"
        )
    return name


def _decode(text: object) -> bytes:
    try:
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    except binascii.Error:
        pass
    raise KitError("a key or signature is not base64")


def _encode(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


_Base64 = Annotated[bytes, PlainValidator(_decode), PlainSerializer(_encode)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A client of the federation: its id, name, and raw Ed25519 identity key (32 bytes)."""

    __pydantic_config__ = NO_OTHER_KEYS

    id: StrictInt
    name: str
    public_key: _Base64

    def __post_init__(self) -> None:
        if not 1 <= self.id <= MAX_CLIENT_ID:
            raise KitError(f"the client id {self.id} is not between 1 and {MAX_CLIENT_ID}")
        check_name(self.name, "the client name")
        if len(self.public_key) != 32:
            raise KitError(f"the public key of client {self.id} has {len(self.public_key)} bytes, not 32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """The members of one federation, in the order of their ids; ids, names and keys are unique.

    `Roster.sign` and `Roster.load` make one; the constructor checks all but the signature.

    keys: from client id to raw Ed25519 public key, 32 bytes.
    """

    __pydantic_config__ = NO_OTHER_KEYS

    federation: str
    members: tuple[Member, ...]
    signature: _Base64
    keys: Annotated[Mapping[int, bytes], Field(exclude=True)] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_name(self.federation, "the federation's name")
        if not self.members:
            raise KitError("a roster needs at least one member")
        if list(self.members) != sorted(self.members, key=lambda member: member.id):
            raise KitError("the members of a roster must stand in the order of their ids")
        for what in ("id", "name", "public_key"):
            values = [getattr(member, what) for member in self.members]
            if len(set(values)) != len(values):
                raise KitError(f"two members of the roster have the same {what.replace('_', ' ')}")
        keys = MappingProxyType({member.id: member.public_key for member in self.members})
        object.__setattr__(self, "keys", keys)

    @classmethod
    def sign(cls, federation: str, members: Iterable[Member], authority: Ed25519PrivateKey) -> Self:
        """Make a roster of `members`, signed by the authority's key."""
        ordered = tuple(sorted(members, key=lambda member: member.id))
        signature = authority.sign(_canonical(federation, ordered))
        return cls(federation=federation, members=ordered, signature=signature)

    @classmethod
    def load(cls, path: Path, authority: bytes) -> Self:
        """Read roster.json and verify it under the authority's raw Ed25519 key (32 bytes).

        Raises KitError for a file that is missing, malformed or not signed by that authority.
        """
        text = read_text(path)
        try:
            roster = from_plain(TypeAdapter(cls), json.loads(text), what="the roster", error=KitError)
        except (ValueError, RecursionError):
            raise broken(path, "not a roster in JSON form", _RESTORE) from None
        except KitError as error:
            raise broken(path, str(error), _RESTORE) from None
        roster.verify(path, authority)
        return roster

    def verify(self, path: Path, authority: bytes) -> None:
        """Check the signature; `path` is named in the KitError."""
        try:
            Ed25519PublicKey.from_public_bytes(authority).verify(self.signature, self.canonical())
        except (InvalidSignature, ValueError):
            raise broken(path, "not signed by this federation's authority", _RESTORE) from None

    def canonical(self) -> bytes:
        """What the authority signs: tag, federation, count; id, name and key of each member."""
        return _canonical(self.federation, self.members)

    def hash(self) -> bytes:
        """SHA-256 of the canonical encoding, 32 bytes; every round is bound to it."""
        return hashlib.sha256(self.canonical()).digest()

    def name(self, client_id: int) -> str:
        """The name of a client; KeyError when the id is not on the roster."""
        for member in self.members:
            if member.id == client_id:
                return member.name
        raise KeyError(client_id)

    def to_json(self) -> str:
        """The text of roster.json."""
        return json.dumps(to_plain(TypeAdapter(Roster), self), indent=2) + "\n"


def _canonical(federation: str, members: tuple[Member, ...]) -> bytes:
    fields: list[Packable] = [ROSTER_TAG, federation, len(members)]
    for member in members:
        fields += [member.id, member.name, member.public_key]
    return pack(*fields)
