"""Domain separation: what is hashed, signed or derived says what it is for.

Every input of a hash, signature or key derivation is a *statement*: a usage tag followed by fields, each with its
length in front. Two statements are equal only when tag and fields are, so bytes made for one purpose never pass for
another. A tag carries the protocol's version; a change of format is a new version.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from enum import StrEnum

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

Field = bytes | str | int
"""What a statement is made of: bytes as they are, text as UTF-8, whole numbers >= 0 as eight big-endian bytes."""

HASH_BYTES = 32
"""Length of SHA-256 digests and of everything that HKDF derives here."""


class Usage(StrEnum):
    """The closed list of purposes; the value is the tag that enters the hash."""

    CONTEXT = "fedcore/secagg/v3"
    KEY_X25519 = "fedcore/secagg/v3/x25519"
    KEY_MLKEM = "fedcore/secagg/v3/mlkem768"
    ADVERTISEMENT = "fedcore/secagg/v3/adv"
    TREE = "fedcore/secagg/v3/tree"
    COHORT = "fedcore/secagg/v3/cohort"
    ORDER = "fedcore/secagg/v3/order"
    SHARE_SEAL = "fedcore/secagg/v3/share"
    COMMITMENT = "fedcore/secagg/v3/bcom"
    SHARE_COMMITMENT = "fedcore/secagg/v3/share-com"
    POSSESSION = "fedcore/secagg/v3/possession"
    POSSESSION_NONCE = "fedcore/secagg/v3/possession-nonce"
    DEALING = "fedcore/secagg/v3/shares"
    DEALING_LEAF = "fedcore/secagg/v3/shares-leaf"
    COMPLAINT = "fedcore/secagg/v3/complaint"
    SELF_MASK = "fedcore/secagg/v3/self"
    PAIR_SECRET = "fedcore/secagg/v3/pair-secret"  # noqa: S105 - the name of a purpose
    PAIR_SEAL = "fedcore/secagg/v3/pair-seal"
    PAIR_MASK = "fedcore/secagg/v3/pair"
    CLIENT_SETS = "fedcore/secagg/v3/sets"
    COIN = "fedcore/secagg/v3/coin"
    NORM_CONTEXT = "fedcore/secagg/v3/norm-context"
    CONSISTENCY = "fedcore/secagg/v3/consistency"
    MESSAGE = "fedcore/secagg/v3/message"
    NORM_GENERATOR = "fedcore/secagg/v3/norm-generator"
    NORM_PROOF = "fedcore/secagg/v3/norm"

    packed: bytes
    """The tag as the first field of a statement."""

    def __init__(self, tag: str) -> None:
        self.packed = len(tag).to_bytes(8, "big") + tag.encode("ascii")


_LENGTHS = tuple(length.to_bytes(8, "big") for length in range(256))
"""The lengths of nearly all fields: a large cohort packs hundreds of millions of them."""
_NUMBER = _LENGTHS[8]


def pack(*fields: Field) -> bytes:
    """Join fields so that they can be told apart again: eight big-endian length bytes, then the field."""
    return b"".join(_parts([], fields))


def pack_ids(ids: Sequence[int]) -> bytes:
    """A list of client ids as one field: eight big-endian bytes for each."""
    return struct.pack(f">{len(ids)}Q", *ids)


def statement(usage: Usage, *fields: Field) -> bytes:
    """The bytes that are signed, authenticated or used as HKDF info for `usage`."""
    return b"".join(_parts([usage.packed], fields))


def tagged_hash(usage: Usage, *fields: Field) -> bytes:
    """SHA-256 over a statement, 32 bytes."""
    return hashlib.sha256(statement(usage, *fields)).digest()


def derive(secret: bytes, salt: bytes, usage: Usage, *fields: Field) -> bytes:
    """HKDF-SHA256 (RFC 5869) with the statement as info, 32 bytes."""
    info = statement(usage, *fields)
    return HKDF(algorithm=SHA256(), length=HASH_BYTES, salt=salt, info=info).derive(secret)


def _parts(parts: list[bytes], fields: Iterable[Field]) -> list[bytes]:
    """`parts` and, behind them, length and bytes of each field."""
    for field in fields:
        if isinstance(field, int):
            parts += (_NUMBER, field.to_bytes(8, "big"))
            continue
        raw = field if isinstance(field, bytes) else field.encode("utf-8")
        size = len(raw)
        parts += (_LENGTHS[size] if size < 256 else size.to_bytes(8, "big"), raw)
    return parts
