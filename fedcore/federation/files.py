"""Reads and writes the files of a federation: modes, atomic folders, checked TOML, PEM keys.

Every reader raises KitError with the name of the file and what to do about it, never its content.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from fedcore.errors import EnvironmentFailure, KitError, StorageFull, UnknownKey
from fedcore.system import files as atomic
from fedcore.system.assignments import type_name
from fedcore.system.files import full_disk_named

REMEDY = "copy the folder again from the federation's operator, or make one with `fedcore provision`"
PRIVATE_MODE = 0o600
PUBLIC_MODE = 0o644


def broken(path: Path, reason: str, remedy: str = REMEDY, *, check: str = "") -> KitError:
    """A KitError that names the file, what is wrong with it, and what to do."""
    return KitError(f"{path}: {reason}; {remedy}", check=check)


def read_public(path: Path) -> bytes:
    """The bytes of a file that anybody may read; KitError if it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise broken(path, "the file is missing") from None
    except OSError as error:
        raise broken(path, error.strerror or "cannot be read", "check its owner and mode") from None


def read_text(path: Path) -> str:
    """The text of a UTF-8 file; KitError if it cannot be read or decoded."""
    try:
        return read_public(path).decode("utf-8")
    except UnicodeDecodeError:
        raise broken(path, "not UTF-8 text") from None


def read_secret(path: Path) -> bytes:
    """The bytes of a file that holds a secret; refused when other users could have read it."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read()
    except OSError:
        return read_public(path)  # the same failure, with the message that belongs to it
    if os.name == "posix" and mode & 0o077:
        raise broken(path, "a secret that other users of this machine can read", f"run: chmod 600 {path}")
    return content


def read_toml(path: Path, types: Mapping[str, type], *, optional: Collection[str] = frozenset()) -> dict[str, Any]:
    """Read a flat TOML file whose keys and their types are all known.

    Raises UnknownKey for a key outside `types`, KitError for a missing key, a wrong type or
    broken TOML.
    """
    try:
        values = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise broken(path, f"not valid TOML ({error})", "mend the line", check="toml") from None
    for key, value in values.items():
        if key not in types:
            raise UnknownKey(key, types, str(path))
        if types[key] is float and type(value) is int:
            values[key] = float(value)
        elif type(value) is not types[key]:  # `type`, because True would pass as an int
            raise broken(path, f"{key} must be {type_name(types[key])}", f"mend the line of {key}", check="type")
    missing = types.keys() - values.keys() - set(optional)
    if missing:
        raise broken(path, f"the key {min(missing)} is missing", "add it", check="missing-key")
    return values


def read_identity(path: Path) -> Ed25519PrivateKey:
    """An Ed25519 private key from a PKCS #8 PEM file that only its owner may read."""
    key = read_private_key(path)
    if not isinstance(key, Ed25519PrivateKey):
        raise broken(path, "not an Ed25519 key", check="key-kind")
    return key


def read_ca_key(path: Path) -> EllipticCurvePrivateKey:
    """The key of the federation's CA, an elliptic curve one, from a PKCS #8 PEM file that only its owner may read."""
    key = read_private_key(path)
    if not isinstance(key, EllipticCurvePrivateKey):
        raise broken(path, "not an elliptic curve key")
    return key


def read_private_key(path: Path) -> PrivateKeyTypes:
    """A private key of any kind from an unencrypted PEM file that only its owner may read."""
    try:
        return serialization.load_pem_private_key(read_secret(path), password=None)
    except (ValueError, TypeError):
        raise broken(path, "not an unencrypted private key in PEM form") from None


def read_authority(path: Path) -> bytes:
    """The authority's Ed25519 public key, 32 bytes, from a PEM file."""
    try:
        key = serialization.load_pem_public_key(read_public(path))
    except ValueError:
        raise broken(path, "not a public key in PEM form") from None
    if not isinstance(key, Ed25519PublicKey):
        raise broken(path, "not an Ed25519 key", check="key-kind")
    return key.public_bytes_raw()


def read_certificate(path: Path) -> x509.Certificate:
    """An X.509 certificate from a PEM file."""
    try:
        return x509.load_pem_x509_certificate(read_public(path))
    except ValueError:
        raise broken(path, "not a certificate in PEM form") from None


def private_pem(key: Ed25519PrivateKey | EllipticCurvePrivateKey) -> bytes:
    """A private key as unencrypted PKCS #8 PEM; the file's mode protects it."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def public_pem(key: Ed25519PublicKey) -> bytes:
    """A public key as SubjectPublicKeyInfo PEM."""
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def write_file(path: Path, content: bytes | str, *, secret: bool = False) -> None:
    """Create a file and its folder (0700), flushed to the disk; a secret is 0600 from the start."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    mode = PRIVATE_MODE if secret else PUBLIC_MODE
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes | str) -> None:
    """Write a file that everybody may read, new or in place of another, at once and durably.

    Raises StorageFull or EnvironmentFailure; the file is then as it was.
    """
    try:
        with full_disk_named(f"no space is left to write {path}"):
            atomic.write_file(path, content, mode=PUBLIC_MODE, durable=True)
    except OSError as error:
        raise EnvironmentFailure(f"{path} cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `target` that takes its name when the block ends well.

    So an unfinished `target` is never seen. Raises KitError when it exists with something in it,
    which is then left as it is; StorageFull or EnvironmentFailure when it cannot be written.
    """
    target = target.absolute()
    _refuse_occupied(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        _cannot_write(target, error)
    try:
        yield staging
        os.rename(staging, target)  # onto nothing or an empty folder; fails on any other
    except OSError as error:
        _refuse_occupied(target)
        _cannot_write(target, error)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _refuse_occupied(target: Path) -> None:
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists():
        raise KitError(
            f"{target} exists and is not an empty folder; choose another one, nothing was changed", check="not-empty"
        )


def _cannot_write(target: Path, error: OSError) -> NoReturn:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise StorageFull(f"no space is left to write {target}; nothing was left behind") from error
    raise EnvironmentFailure(f"cannot write {target}: {error.strerror}; nothing was left behind") from error
