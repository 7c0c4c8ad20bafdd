"""The kits: what a server, a client and an operator need of their federation, a folder for each.

A kit is checked as a whole when it is loaded: the roster's signature, that the keys fit each other,
and that nobody but their owner can read the secrets. Secrets stay out of every repr.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedcore.errors import KitError
from fedcore.federation.eligibility import EligibilityRules, Hours
from fedcore.federation.files import (
    REMEDY,
    broken,
    read_authority,
    read_certificate,
    read_identity,
    read_secret,
    read_text,
    read_tls_key,
    read_toml,
)
from fedcore.federation.roster import Roster
from fedcore.secagg import FULL_GRAPH_BELOW, default_quorum

NodeValue = bool | int | float | str

SERVER_FILE: Final = "server.toml"
CLIENT_FILE: Final = "client.toml"
OPERATOR_FILE: Final = "operator.toml"
POLICY_FILE: Final = "policy.toml"
ROSTER_FILE: Final = "roster.json"
AUTHORITY_FILE: Final = "authority.pub"
IDENTITY_FILE: Final = "identity.key"
CA_FILE: Final = "ca.crt"
TOKEN_FILE: Final = "token"  # noqa: S105 - the name of a file

MIN_CORRUPT: Final = 0.05
"""What a policy demands where its file says nothing; the default of a job's max-corrupt."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a client's owner insists on; the server cannot lower it.

    min_cohort: fewest clients that a sum may be made of.
    min_threshold: fewest clients that must work together to remove a mask.
    app_sha256: hash of the only app it agrees to run; None for whatever app the owner installed.
    allow_plain: whether the server may read this client's updates one by one, as it does with
        `aggregation = "plain"`.
    min_corrupt: fraction of a cohort that must be able to collude with the server without learning
        more than the sum.
    allow_x25519: whether keys may be agreed without ML-KEM, so that uploads that somebody records
        would open to a later quantum computer.
    max_epsilon: how much all sums with this client in them may reveal about it together, in all runs;
        0 where its owner does not insist on differential privacy.
    delta: the delta at which that epsilon is counted.
    eligibility: when the machine may train at all; not a question of what the server asks for.
    """

    min_cohort: int
    min_threshold: int
    app_sha256: str | None = None
    allow_plain: bool = False
    min_corrupt: float = MIN_CORRUPT
    allow_x25519: bool = False
    max_epsilon: float = 0.0
    delta: float = 1e-5
    eligibility: EligibilityRules = field(default_factory=EligibilityRules)

    def __post_init__(self) -> None:
        if self.min_cohort < 2:
            raise KitError("min-cohort must be at least 2: a sum over one client is that client's update")
        if not 2 <= self.min_threshold <= self.min_cohort:
            raise KitError("min-threshold must be at least 2 and at most min-cohort")
        if not 0 <= self.min_corrupt < 1 / 3:
            raise KitError("min-corrupt must be at least 0 and less than a third")
        if self.app_sha256 is not None and not _SHA256.fullmatch(self.app_sha256):
            raise KitError("app-sha256 must be 64 lower-case hexadecimal digits, or empty")
        if not 0 <= self.max_epsilon < math.inf:
            raise KitError("max-epsilon must be a number that is not negative; 0 does not ask for differential privacy")
        if not 0 < self.delta < 1:
            raise KitError("delta must be greater than 0 and less than 1")
        if self.max_epsilon and self.allow_plain:
            raise KitError("allow-plain and max-epsilon contradict each other: a readable update has no noise")

    @classmethod
    def default(cls, clients: int) -> Self:
        """The policy that `provision` gives to each of `clients` clients.

        Three is the smallest cohort whose sum tells no member the update of another; a federation
        of two has no choice. The threshold is the protocol's default for that cohort,
        floor(2n/3) + 1, so a server that names a smaller one is refused. Large federations agree on
        keys without ML-KEM by default, which is a question of bytes (docs/adr/0006).
        """
        cohort = max(2, min(3, clients))
        return cls(
            min_cohort=cohort,
            min_threshold=default_quorum(cohort),
            allow_x25519=clients >= FULL_GRAPH_BELOW,
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read policy.toml; raises KitError or UnknownKey."""
        types = {
            "min-cohort": int,
            "min-threshold": int,
            "app-sha256": str,
            "allow-plain": bool,
            "min-corrupt": float,
            "allow-x25519": bool,
            "max-epsilon": float,
            "delta": float,
            "train-hours": list,
            "on-power-only": bool,
            "idle-only": bool,
            "idle-load": float,
        }
        values = read_toml(path, types, optional=frozenset(types) - {"min-cohort", "min-threshold"})
        given = {key.replace("-", "_"): value for key, value in values.items()}
        rules = {key: given.pop(key) for key in EligibilityRules.__slots__ if key in given}
        try:
            return cls(**{**given, "app_sha256": given.get("app_sha256") or None, "eligibility": _eligibility(rules)})
        except KitError as error:
            raise broken(path, str(error), "mend the line") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientKit:
    """What one client needs to take part.

    authority: the pinned raw Ed25519 key (32 bytes) that signs the roster.
    ca_file: the only certificate authority that the client trusts for the server's TLS certificate.
    node_config: what a Flower ClientApp sees as `context.node_config`.
    """

    folder: Path
    federation: str
    client_id: int
    name: str
    server_url: str
    node_config: Mapping[str, NodeValue]
    identity: Ed25519PrivateKey = field(repr=False)
    authority: bytes
    ca_file: Path
    roster: Roster
    policy: Policy

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read and check a client's folder; raises KitError or UnknownKey."""
        folder = _kit_folder(folder, CLIENT_FILE)
        path = folder / CLIENT_FILE
        values = read_toml(
            path, {"federation": str, "client-id": int, "name": str, "server-url": str, "node-config": dict}
        )
        authority = read_authority(folder / AUTHORITY_FILE)
        kit = cls(
            folder=folder,
            federation=values["federation"],
            client_id=values["client-id"],
            name=values["name"],
            server_url=_server_url(path, values["server-url"]),
            node_config=_node_config(path, values["node-config"]),
            identity=read_identity(folder / IDENTITY_FILE),
            authority=authority,
            ca_file=_certificate_file(folder / CA_FILE),
            roster=_roster(folder / ROSTER_FILE, authority, path, values["federation"]),
            policy=Policy.load(folder / POLICY_FILE),
        )
        kit._check_membership()
        return kit

    def _check_membership(self) -> None:
        path = self.folder / CLIENT_FILE
        if self.client_id not in self.roster.keys:
            raise broken(path, f"client {self.client_id} is not on the roster")
        if self.name != self.roster.name(self.client_id):
            raise broken(path, f"the roster has another name for client {self.client_id}")
        if self.identity.public_key().public_bytes_raw() != self.roster.keys[self.client_id]:
            raise broken(self.folder / IDENTITY_FILE, f"not the key that the roster has for client {self.client_id}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKit:
    """What the server needs: where it listens, its certificate, the roster, where it keeps its data.

    min_cohort: the fewest clients that a secure sum may be made of, as the clients' policies say; a server that asks
        for less is refused by every one of them.
    operator_token_sha256: SHA-256 of the operator's bearer token, 32 bytes; it has no copy of it.
    """

    folder: Path
    federation: str
    host: str
    port: int
    tls_certificate: Path
    tls_key: Path
    data_dir: Path
    authority: bytes
    roster: Roster
    min_cohort: int
    operator_token_sha256: bytes = field(repr=False)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read and check the server's folder, or the federation's folder around it.

        Paths in server.toml are relative to it. Raises KitError or UnknownKey.
        """
        folder = _kit_folder(folder, SERVER_FILE, "server")
        path = folder / SERVER_FILE
        types: dict[str, type] = {"port": int, "min-cohort": int}
        paths = ("tls-certificate", "tls-key", "roster", "authority", "operator-token-sha256", "data-dir")
        types |= dict.fromkeys(("federation", "host", *paths), str)
        values = read_toml(path, types, optional=frozenset({"min-cohort"}))
        if not 0 <= values["port"] <= 65535:
            raise broken(path, "port must be between 0 and 65535", "mend the line")
        authority = read_authority(folder / values["authority"])
        _check_tls(folder / values["tls-certificate"], folder / values["tls-key"])
        roster = _roster(folder / values["roster"], authority, path, values["federation"])
        least = values.get("min-cohort", Policy.default(len(roster.members)).min_cohort)
        if least < 2:
            raise broken(path, "min-cohort must be at least 2", "mend the line")
        return cls(
            folder=folder,
            federation=values["federation"],
            host=values["host"],
            port=values["port"],
            tls_certificate=folder / values["tls-certificate"],
            tls_key=folder / values["tls-key"],
            data_dir=folder / values["data-dir"],
            authority=authority,
            roster=roster,
            min_cohort=least,
            operator_token_sha256=_token_hash(folder / values["operator-token-sha256"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorKit:
    """What an operator needs to submit runs: the server's address, its CA, and a bearer token."""

    folder: Path
    federation: str
    server_url: str
    ca_file: Path
    token: str = field(repr=False)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read and check the operator's folder, or the federation's folder around it.

        Raises KitError or UnknownKey.
        """
        folder = _kit_folder(folder, OPERATOR_FILE, "operator")
        path = folder / OPERATOR_FILE
        values = read_toml(path, {"federation": str, "server-url": str})
        return cls(
            folder=folder,
            federation=values["federation"],
            server_url=_server_url(path, values["server-url"]),
            ca_file=_certificate_file(folder / CA_FILE),
            token=_token(folder / TOKEN_FILE),
        )


def _eligibility(rules: Mapping[str, Any]) -> EligibilityRules:
    hours = rules.get("train_hours", [])
    if not all(isinstance(text, str) for text in hours):
        raise KitError('train-hours must be a list of texts such as "22:00-06:00"')
    return EligibilityRules(**{**rules, "train_hours": tuple(map(Hours.parse, hours))})


def _kit_folder(folder: Path, file: str, below: str | None = None) -> Path:
    """The absolute folder that holds `file`: `folder` itself, or `folder/below`."""
    folder = folder.absolute()
    for candidate in (folder, folder / below) if below else (folder,):
        if (candidate / file).exists():
            return candidate
    reason = "there is no such folder" if not folder.is_dir() else f"there is no {file} in this folder"
    raise broken(folder, reason, f"name the folder that holds {file}, or {REMEDY}")


def _roster(path: Path, authority: bytes, settings: Path, federation: str) -> Roster:
    roster = Roster.load(path, authority)
    if roster.federation != federation:
        raise broken(settings, f"the roster is for the federation {roster.federation!r}, not {federation!r}")
    return roster


def _server_url(path: Path, url: str) -> str:
    try:
        parts = urlsplit(url)
        sound = parts.scheme == "https" and parts.hostname and parts.port != 0 and not (parts.query or parts.fragment)
    except ValueError:
        sound = False
    if not sound:
        raise broken(path, "server-url must look like https://host:port", "mend the line")
    return url.rstrip("/")


def _node_config(path: Path, values: Mapping[str, object]) -> Mapping[str, NodeValue]:
    checked: dict[str, NodeValue] = {}
    for key, value in values.items():
        if not isinstance(value, bool | int | float | str):
            raise broken(path, f"node-config.{key} must be a number, a string, true or false", "mend the line")
        checked[key] = value
    return MappingProxyType(checked)


def _certificate_file(path: Path) -> Path:
    read_certificate(path)
    return path


def _check_tls(certificate: Path, key: Path) -> None:
    if read_certificate(certificate).public_key() != read_tls_key(key).public_key():
        raise broken(key, f"not the key of the certificate {certificate.name}")


def _token_hash(path: Path) -> bytes:
    text = read_text(path).strip()
    if not _SHA256.fullmatch(text):
        raise broken(path, "not a SHA-256 in lower-case hexadecimal digits")
    return bytes.fromhex(text)


def _token(path: Path) -> str:
    try:
        token = read_secret(path).decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    # Printable and without blanks, so that it can stand in an Authorization header (RFC 6750, 2.1).
    if not token or not token.isprintable() or " " in token:
        raise broken(path, "not a bearer token")
    return token
