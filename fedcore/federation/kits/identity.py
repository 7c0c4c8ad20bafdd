"""A client's identity key: made, opened and replaced here and nowhere else.

The key lies in a file of its owner, unencrypted, mode 0600; or that file has the URI of a key in a token (PKCS #11,
`token_keys`). All that the rest asks of it is to sign (`Signer`).

While a key is replaced there are two: identity.key, and next to it identity.next.key, which takes its place once the
federation's roster names it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedcore.errors import EnvironmentFailure
from fedcore.federation.files import broken, private_pem, write_file
from fedcore.federation.kits.token_keys import key_in_token, read_signer
from fedcore.secagg import Signer
from fedcore.system.files import sync_folder

IDENTITY_FILE: Final = "identity.key"
NEXT_IDENTITY_FILE: Final = "identity.next.key"


def make_identity(folder: Path, randomness: Callable[[int], bytes], uri: str = "") -> Signer:
    """A new key in a folder that has none yet; with the URI of a key in a token, that one."""
    return _make(folder / IDENTITY_FILE, randomness, uri)


def make_next(folder: Path, randomness: Callable[[int], bytes], uri: str = "") -> Signer:
    """The key that is to replace the one in use: the one that waits already, or a new one, or that of a URI."""
    return next_identity(folder) or _make(folder / NEXT_IDENTITY_FILE, randomness, uri)


def open_identity(folder: Path, public_key: bytes | None = None) -> Signer:
    """The client's key; KitError if there is none, if others can read it, or if it has another public key.

    Args:
        public_key: raw Ed25519, 32 bytes, as the roster has it; without it the key in use. A key that waits is opened
            where the roster names that one already.
    """
    identity = read_signer(folder / IDENTITY_FILE)
    if public_key is None or public_bytes(identity) == public_key:
        return identity
    following = next_identity(folder)
    if following is not None and public_bytes(following) == public_key:
        return following
    raise broken(folder / IDENTITY_FILE, "not the key that the roster has for this client", check="other-key")


def next_identity(folder: Path) -> Signer | None:
    """The key that waits to replace the one in use, if there is one."""
    path = folder / NEXT_IDENTITY_FILE
    return read_signer(path) if path.exists() else None


def use_next(folder: Path) -> None:
    """Let the key that waits take the place of the one in use, which is gone then."""
    try:
        os.replace(folder / NEXT_IDENTITY_FILE, folder / IDENTITY_FILE)
        sync_folder(folder)
    except OSError as error:
        raise EnvironmentFailure(f"{folder / IDENTITY_FILE} cannot be replaced: {error.strerror}") from error


def public_bytes(identity: Signer) -> bytes:
    """The raw public key, 32 bytes."""
    return identity.public_key().public_bytes_raw()


def _make(path: Path, randomness: Callable[[int], bytes], uri: str) -> Signer:
    if uri:
        key = key_in_token(uri)
        write_file(path, f"{key.uri.text}\n", secret=True)
        return key
    identity = Ed25519PrivateKey.from_private_bytes(randomness(32))
    write_file(path, private_pem(identity), secret=True)
    return identity
