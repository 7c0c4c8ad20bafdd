"""The roster: who belongs to a federation, signed by its authority, one version after another.

The signature covers a canonical binary encoding, not the JSON text, so that two programs cannot
read one signed roster in two ways. Every field is preceded by its length (8 bytes, big endian), and a
domain tag with a version stands first.

Each roster names the one before by its hash. Who knows one accepts only its successor, so no server can take a party
back to a roster on which a revoked client still stands, nor show two parties different ones for long.
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
from typing import Annotated, Any, Final, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import Field, PlainSerializer, PlainValidator, StrictInt, TypeAdapter

from fedcore.errors import KitError, ProtocolViolation
from fedcore.federation.files import broken, read_text
from fedcore.secagg import Signer
from fedcore.secagg.crypto.domain import Field as Packable
from fedcore.secagg.crypto.domain import pack
from fedcore.system.plain_json import NO_OTHER_KEYS, from_plain, to_plain

ROSTER_TAG: Final = "fedcore/roster/v2"
MAX_CLIENT_ID: Final = 2**31 - 1
MAX_VERSION: Final = 2**31 - 1
"""Of a roster, as the routes have it."""
NOTHING_BEFORE: Final = bytes(32)
"""What the first roster names as the one before it."""

ROLLBACK: Final = "roster-rollback"
FORK: Final = "roster-fork"
GAP: Final = "roster-gap"
HISTORY: Final = "roster-history"
UNSIGNED: Final = "roster-unsigned"
MALFORMED: Final = "roster-malformed"
REVOKED: Final = "revoked"
OTHER_KEY: Final = "roster-other-key"
ROSTER_CHECKS: Final = frozenset({ROLLBACK, FORK, GAP, HISTORY, UNSIGNED, MALFORMED, REVOKED, OTHER_KEY})
"""The fixed names under which a roster is refused; `revoked` and the last one by a client that it concerns."""

# Names go into TOML, URLs of the dashboard and logs; this set needs no quoting in any of them.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_RESTORE = "take the roster that the federation's authority signed"


def check_name(name: str, what: str) -> str:
    """Return `name`; KitError unless it is 1 to 64 letters, digits, dots, dashes or underscores."""
    if not _NAME.fullmatch(name):
        raise KitError(
            f"{what} {name!r} must be 1 to 64 letters, digits, dots, dashes or underscores, "
            "with a letter or digit at each end",
            check="name",
        )
    return name


def name_after(folder: Path) -> str:
    """The name of a federation that was given none: that of its folder, with a dash for what a name may not have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", folder.resolve().name)[:64].strip("._-") or "federation"


def _decode(text: object) -> bytes:
    try:
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    except binascii.Error:
        pass
    raise KitError("a key, hash or signature is not base64")


def _encode(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


Base64 = Annotated[bytes, PlainValidator(_decode), PlainSerializer(_encode)]
"""Bytes that stand as base64 in a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A client of the federation: its id, name, and raw Ed25519 identity key (32 bytes)."""

    __pydantic_config__ = NO_OTHER_KEYS

    id: StrictInt
    name: str
    public_key: Base64

    def __post_init__(self) -> None:
        if not 1 <= self.id <= MAX_CLIENT_ID:
            raise KitError(f"the client id {self.id} is not between 1 and {MAX_CLIENT_ID}")
        check_name(self.name, "the client name")
        if len(self.public_key) != 32:
            raise KitError(f"the public key of client {self.id} has {len(self.public_key)} bytes, not 32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """One version of who belongs to a federation; ids, names and keys are unique, also among those who left.

    `Roster.sign`, `Roster.followed_by` and `Roster.load` make one; the constructor checks all but the signature.

    version: 1 for the first, then one more each time.
    previous: `hash()` of the version before, 32 bytes, zeros for the first.
    members: in the order of their ids; there may be none yet.
    revoked: former members likewise, with the key that they had last.
    keys: client id -> raw Ed25519 public key, 32 bytes, of members alone.
    names: client id -> name, of members and former members.
    """

    __pydantic_config__ = NO_OTHER_KEYS

    federation: str
    version: StrictInt
    previous: Base64
    members: tuple[Member, ...]
    revoked: tuple[Member, ...]
    signature: Base64
    keys: Annotated[Mapping[int, bytes], Field(exclude=True)] = field(init=False, repr=False)
    names: Annotated[Mapping[int, str], Field(exclude=True)] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_name(self.federation, "the federation's name")
        if not 1 <= self.version <= MAX_VERSION or len(self.previous) != 32:
            raise KitError(f"a roster has a version from 1 to {MAX_VERSION} and the SHA-256 of the one before")
        if (self.version == 1) != (self.previous == NOTHING_BEFORE):
            raise KitError("the first roster, and no other, follows nothing")
        for listed in (self.members, self.revoked):
            if list(listed) != sorted(listed, key=lambda member: member.id):
                raise KitError("the members of a roster must stand in the order of their ids", check="order")
        everybody = (*self.members, *self.revoked)
        for what in ("id", "name", "public_key"):
            values = [getattr(member, what) for member in everybody]
            if len(set(values)) != len(values):
                raise KitError(
                    f"two members of the roster, past ones included, have the same {what.replace('_', ' ')}",
                    check=f"same-{what.replace('_', '-')}",
                )
        keys = {member.id: member.public_key for member in self.members}
        object.__setattr__(self, "keys", MappingProxyType(keys))
        object.__setattr__(self, "names", MappingProxyType({member.id: member.name for member in everybody}))

    @classmethod
    def sign(cls, federation: str, members: Iterable[Member], authority: Signer) -> Self:
        """The first roster of a federation, signed by the authority's key."""
        return cls._signed(authority, federation, 1, NOTHING_BEFORE, members, ())

    def followed_by(self, members: Iterable[Member], revoked: Iterable[Member], authority: Signer) -> Roster:
        """The next roster, signed; KitError if it would not be accepted after this one."""
        following = self._signed(authority, self.federation, self.version + 1, self.hash(), members, revoked)
        try:
            self.check_successor(following)
        except ProtocolViolation as error:
            raise KitError(str(error)) from None
        return following

    @classmethod
    def _signed(
        cls,
        authority: Signer,
        federation: str,
        version: int,
        previous: bytes,
        members: Iterable[Member],
        revoked: Iterable[Member],
    ) -> Self:
        listed, former = (tuple(sorted(group, key=lambda member: member.id)) for group in (members, revoked))
        signature = authority.sign(_canonical(federation, version, previous, listed, former))
        return cls(
            federation=federation,
            version=version,
            previous=previous,
            members=listed,
            revoked=former,
            signature=signature,
        )

    @classmethod
    def of(cls, document: object) -> Self:
        """A roster from parsed JSON, whose signature is still to be verified; raises KitError."""
        return from_plain(TypeAdapter(cls), document, what="the roster", error=KitError)

    @classmethod
    def load(cls, path: Path, authority: bytes) -> Self:
        """Read roster.json and verify it under the authority's raw Ed25519 key (32 bytes).

        Raises KitError for a file that is missing, malformed or not signed by that authority.
        """
        text = read_text(path)
        try:
            roster = cls.of(json.loads(text))
            roster.verify(authority)
        except (ValueError, RecursionError):
            raise broken(path, "not a roster in JSON form", _RESTORE) from None
        except (KitError, ProtocolViolation) as error:
            raise broken(path, str(error), _RESTORE, check=error.check) from None
        return roster

    @classmethod
    def received(cls, text: str, authority: bytes) -> Self:
        """A roster that a peer sent, verified; raises ProtocolViolation, without a word of what came."""
        try:
            roster = cls.of(json.loads(text))
        except (ValueError, RecursionError, KitError):
            raise ProtocolViolation(MALFORMED, "what was sent is no roster") from None
        roster.verify(authority)
        return roster

    def verify(self, authority: bytes) -> None:
        """Raise ProtocolViolation("roster-unsigned") unless the raw Ed25519 key `authority` signed this."""
        try:
            Ed25519PublicKey.from_public_bytes(authority).verify(self.signature, self.canonical())
        except (InvalidSignature, ValueError):
            raise ProtocolViolation(UNSIGNED, "not signed by this federation's authority") from None

    def check_successor(self, successor: Roster) -> None:
        """Raise ProtocolViolation, under one of the fixed names, unless `successor` is the next roster after this one.

        Its signature is for `verify`. An id is never given twice and a name never changes hands: members stay, as
        members or as former ones, and new ones have higher ids.
        """
        if successor.version < self.version:
            raise ProtocolViolation(
                ROLLBACK, f"roster {successor.version} is older than roster {self.version}, which is known already"
            )
        if successor.version > self.version + 1:
            raise ProtocolViolation(
                GAP, f"roster {successor.version} does not follow roster {self.version}; those between are missing"
            )
        if successor.version == self.version or successor.previous != self.hash():
            raise ProtocolViolation(
                FORK, f"another roster {successor.version} than the one that follows the known roster {self.version}"
            )
        self._check_history(successor)

    def _check_history(self, successor: Roster) -> None:
        still_named = {id_: name for id_, name in successor.names.items() if id_ in self.names}
        fresh = successor.names.keys() - self.names.keys()
        sound = (
            successor.federation == self.federation
            and still_named == self.names
            and set(self.revoked) <= set(successor.revoked)
            and min(fresh, default=MAX_CLIENT_ID) > max(self.names, default=0)
        )
        if not sound:
            raise ProtocolViolation(
                HISTORY, f"roster {successor.version} rewrites who belonged to the federation before"
            )

    def canonical(self) -> bytes:
        """What the authority signs: tag, federation, version, hash before; then members and former ones.

        Each of the two lists is its count, then id, name and key of each.
        """
        return _canonical(self.federation, self.version, self.previous, self.members, self.revoked)

    def hash(self) -> bytes:
        """SHA-256 of the canonical encoding, 32 bytes; every round is bound to it."""
        return hashlib.sha256(self.canonical()).digest()

    def to_plain(self) -> dict[str, Any]:
        """This roster as an object for `json.dumps`."""
        return to_plain(TypeAdapter(Roster), self)

    def to_json(self) -> str:
        """The text of roster.json."""
        return json.dumps(self.to_plain(), indent=2) + "\n"


def _canonical(
    federation: str, version: int, previous: bytes, members: tuple[Member, ...], revoked: tuple[Member, ...]
) -> bytes:
    fields: list[Packable] = [ROSTER_TAG, federation, version, previous]
    for listed in (members, revoked):
        fields.append(len(listed))
        for member in listed:
            fields += [member.id, member.name, member.public_key]
    return pack(*fields)
