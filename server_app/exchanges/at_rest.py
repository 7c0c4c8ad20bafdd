"""Integrity checks of files and messages that an earlier process stored: a disk may return other bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from fedcore.errors import DamagedAtRest
from fedcore.system.concurrency import in_thread
from fedcore.wire.chunks import file_digest, first_file_digest
from server_app.storage.objects import Objects
from server_app.storage.tables import ReceiptRow


async def intact(objects: Objects, key: str, what: str, digest: str, digest_of: Callable[[Path], str]) -> Path:
    """The object of a key, if it is what was written.

    key
        Of the object.
    what
        It is, for a person.
    digest
        Signed or stored when the object was written; "" if an earlier fedcore stored none: then it is not checked.
    digest_of
        Computes the digest from a file, block by block; runs in a thread.

    Raises:
        DamagedAtRest: the object is missing, or another one.
        StorageUnavailable: the object store does not answer.
    """
    try:
        path = await objects.fetch(key)
        actual = await in_thread(digest_of, path) if digest else ""
    except (KeyError, OSError) as error:
        raise DamagedAtRest(what) from error
    if actual != digest:
        raise DamagedAtRest(what)
    return path


def update_digest_of(path: Path) -> str:
    """The digest that a client signs of its update, in hexadecimal; raises OSError."""
    return file_digest(path).hex()


def reply_digest_of(path: Path, digest: str) -> str:
    """The same of a plain reply; in the form of fedcore 0.2.0 if that is the one of `digest`. Raises OSError."""
    ours = update_digest_of(path)
    if ours == digest:  # else the file is read again: it is an old one, or damaged
        return ours
    first = first_file_digest(path).hex()
    return first if first == digest else ours


def damaged_message(receipts: Iterable[ReceiptRow], names: Mapping[int, str]) -> DamagedAtRest | None:
    """The first message that is not as it was kept; one that an earlier fedcore kept is not looked at."""
    for row in receipts:
        if row.body_sha256 is not None and hashlib.sha256(row.body).digest() != bytes(row.body_sha256):
            return DamagedAtRest(f"the message {row.step!r} of {names[row.client]} in exchange {row.exchange}")
    return None
