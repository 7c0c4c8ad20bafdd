"""Messages between a client that joins and the authority: its request, and the admission.

Both are public. The request proves that its sender holds the key; that the sender is who it says is for two people to
find out, by the key's fingerprint. The authority signs the admission, so that a client that knows the authority's
fingerprint takes server address and certificate authority from nobody else.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import StrictInt, TypeAdapter

from fedcore.errors import KitError, ProtocolViolation
from fedcore.federation.files import broken, read_text
from fedcore.federation.kits.identity import public_bytes
from fedcore.federation.roster import Base64, Roster, check_name
from fedcore.secagg import Signer
from fedcore.secagg.crypto.domain import pack
from fedcore.system.plain_json import NO_OTHER_KEYS, from_plain, to_plain

REQUEST_TAG: Final = "fedcore/request/v1"
ADMISSION_TAG: Final = "fedcore/admission/v1"
REQUEST_SUFFIX: Final = ".request.json"
ADMISSION_SUFFIX: Final = ".admission.json"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A client asks to be a member under `name` with this raw Ed25519 key (32 bytes).

    replaces: the key that the client has now and wants to replace; empty if it is new.
    proof: signature of the new key over the rest.
    consent: of the old one, empty if there is none.
    """

    __pydantic_config__ = NO_OTHER_KEYS

    name: str
    public_key: Base64
    replaces: Base64
    proof: Base64
    consent: Base64

    @classmethod
    def make(cls, name: str, identity: Signer, replaces: Signer | None = None) -> Self:
        """The request of the client with this `identity`; KitError for a name that cannot be one."""
        check_name(name, "the client name")
        old = public_bytes(replaces) if replaces is not None else b""
        statement = pack(REQUEST_TAG, name, public_bytes(identity), old)
        consent = replaces.sign(statement) if replaces is not None else b""
        return cls(
            name=name,
            public_key=public_bytes(identity),
            replaces=old,
            proof=identity.sign(statement),
            consent=consent,
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a request and verify its signatures; raises KitError."""
        request = _read(TypeAdapter(cls), path, "the request")
        try:
            check_name(request.name, "the client name")
        except KitError as error:
            raise broken(path, str(error), "have the client make another request") from None
        statement = pack(REQUEST_TAG, request.name, request.public_key, request.replaces)
        signed = _verifies(request.public_key, request.proof, statement)
        if request.replaces:
            signed = signed and _verifies(request.replaces, request.consent, statement)
        if not signed:
            raise broken(path, "not signed by the key that it names", "have the client make another request")
        return request

    def to_json(self) -> str:
        """The text of the file."""
        return _text(TypeAdapter(JoinRequest), self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What a new client needs to complete its kit: who it is, where the server is, whom to trust, and the roster.

    ca: the certificate authority of the server, PEM.
    authority: raw Ed25519 key, 32 bytes.
    signature: the authority's.
    """

    __pydantic_config__ = NO_OTHER_KEYS

    client_id: StrictInt
    name: str
    server_url: str
    ca: str
    authority: Base64
    roster: Roster
    signature: Base64

    @classmethod
    def sign(cls, client_id: int, roster: Roster, *, server_url: str, ca: str, authority: Signer) -> Self:
        """The admission of a member of `roster`."""
        name = roster.names[client_id]
        return cls(
            client_id=client_id,
            name=name,
            server_url=server_url,
            ca=ca,
            authority=public_bytes(authority),
            roster=roster,
            signature=authority.sign(_admission_statement(client_id, name, server_url, ca, roster)),
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read an admission and verify it under the authority that it names itself; raises KitError.

        Whether that is the right authority is for the caller to check, by its fingerprint.
        """
        admission = _read(TypeAdapter(cls), path, "the admission")
        remedy = "ask the authority for it again"
        if not admission.is_signed():
            raise broken(path, "not signed by the authority that it names", remedy, check="unsigned")
        try:
            admission.roster.verify(admission.authority)
        except ProtocolViolation as error:
            raise broken(path, str(error), remedy) from None
        return admission

    def is_signed(self) -> bool:
        """Whether the authority that it names has signed it."""
        try:
            statement = _admission_statement(self.client_id, self.name, self.server_url, self.ca, self.roster)
        except (OverflowError, UnicodeEncodeError):  # of an id, or of half a character, nothing was ever signed
            return False
        return _verifies(self.authority, self.signature, statement)

    def to_json(self) -> str:
        """The text of the file."""
        return _text(TypeAdapter(Admission), self)


def _admission_statement(client_id: int, name: str, server_url: str, ca: str, roster: Roster) -> bytes:
    return pack(ADMISSION_TAG, roster.federation, client_id, name, server_url, ca, roster.hash())


def _verifies(public_key: bytes, signature: bytes, statement: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True


def _read(form: TypeAdapter[T], path: Path, what: str) -> T:
    text = read_text(path)
    remedy = "have it sent again"
    try:
        return from_plain(form, json.loads(text), what=what, error=KitError)
    except (ValueError, RecursionError):
        raise broken(path, f"not {what} in JSON form", remedy) from None
    except KitError as error:
        raise broken(path, str(error), remedy) from None


def _text(form: TypeAdapter[Any], value: object) -> str:
    return json.dumps(to_plain(form, value), indent=2) + "\n"
