"""The kits of server, client and operator: a folder each with what it needs from the federation.

A kit is checked as a whole when it is loaded: the roster's signature, that the keys fit each other,
and that nobody but their owner can read the secrets. Secrets stay out of every repr.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self
from urllib.parse import urlsplit

from fedcore.federation.approval import ANY, APPROVED_FILE, LISTED, ApprovedApps
from fedcore.federation.chain import load_chain
from fedcore.federation.files import (
    REMEDY,
    broken,
    read_authority,
    read_certificate,
    read_private_key,
    read_secret,
    read_text,
    read_toml,
)
from fedcore.federation.kits.identity import open_identity
from fedcore.federation.policy import Policy
from fedcore.federation.roster import Roster
from fedcore.secagg import Signer
from fedcore.system.sandbox.sandbox import Rules

NodeValue = bool | int | float | str

SERVER_FILE: Final = "server.toml"
CLIENT_FILE: Final = "client.toml"
OPERATOR_FILE: Final = "operator.toml"
POLICY_FILE: Final = "policy.toml"
ROSTER_FILE: Final = "roster.json"
ROSTERS_FILE: Final = "rosters.json"
AUTHORITY_FILE: Final = "authority.pub"
CA_FILE: Final = "ca.crt"
SYSTEM_CAS: Final = "system"
"""In place of a file, those that the machine trusts."""
CERTIFICATE_FILE: Final = "server.crt"
AUTHORITY_SETTINGS: Final = "federation.toml"
AUTHORITY_KEY: Final = "authority.key"
CA_KEY: Final = "ca.key"
TOKEN_FILE: Final = "token"  # noqa: S105 - the name of a file

_APP_KEYS: Final = ("app-env", "app-read", "app-sandbox", "approve-apps")
_REACHED: Final[Mapping[str, type]] = {"server-url": str, "servers": list, "tls-ca": str}
_KEEPING_KEYS: Final = ("keep-runs", "keep-days")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientKit:
    """What one client needs to take part.

    servers: where the federation's server is found, in the order in which it is tried.
    identity: signs whatever this client says; the key that the roster has for it.
    authority: the pinned raw Ed25519 key (32 bytes) that signs the roster.
    ca_file: the certificate authorities that the client trusts for the server's TLS certificate, the federation's own
        unless `tls-ca` names others; None for those of the system.
    node_config: what a Flower ClientApp sees as `context.node_config`.
    roster: the newest that this client has verified.
    traces: the OTLP endpoint for spans of the client's work, empty for none.
    """

    folder: Path
    federation: str
    client_id: int
    name: str
    servers: tuple[str, ...]
    node_config: Mapping[str, NodeValue]
    identity: Signer = field(repr=False)
    authority: bytes
    ca_file: Path | None
    roster: Roster
    policy: Policy
    traces: str = ""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read and check a client's folder; raises KitError or UnknownKey."""
        folder = kit_folder(folder, CLIENT_FILE)
        path = folder / CLIENT_FILE
        values = read_toml(
            path,
            {"federation": str, "client-id": int, "name": str, "node-config": dict, "traces": str, **_REACHED},
            optional={"traces", *_REACHED},
        )
        authority = read_authority(folder / AUTHORITY_FILE)
        roster = Roster.load(folder / ROSTER_FILE, authority)
        _check_federation(path, roster, values["federation"])
        _check_membership(path, roster, values["client-id"], values["name"])
        return cls(
            folder=folder,
            federation=values["federation"],
            client_id=values["client-id"],
            name=values["name"],
            servers=_servers(path, values),
            node_config=_node_config(path, values["node-config"]),
            identity=open_identity(folder, roster.keys[values["client-id"]]),
            authority=authority,
            ca_file=_trusted(folder, values),
            roster=roster,
            policy=Policy.load(folder / POLICY_FILE),
            traces=values.get("traces", ""),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKit:
    """What the server needs: where it listens, its certificate, the rosters, where it keeps its data.

    rosters: all versions, in order; rosters_file: where they are kept.
    min_cohort: the fewest clients of a secure sum beside those that may collude with the server, as the clients'
        policies say; a server that asks for less is refused by every one of them.
    database: URL of a PostgreSQL database, "" for SQLite in the data folder. objects: where large files go, "" for the
        data folder, a folder, or `s3://bucket/prefix`.
    app_rules: what a ServerApp may see in addition to its own files. approved_apps: those that may run; None for all.
    keep_runs, keep_days: how many runs that have ended are kept, and for how long; 0 for no limit.
    trust_proxy: addresses and networks of proxies whose word for where a request comes from is taken.
    accel_location: of an nginx that shares the data folder: the location under which that hands out the server's files
        (X-Accel-Redirect); "" if the server sends them itself.
    operator_token_sha256: SHA-256 of the operator's bearer token, 32 bytes; it has no copy of it.
    metrics_listen: "host:port" of the metrics, empty for none. traces: the OTLP endpoint, empty for none.
    """

    folder: Path
    federation: str
    host: str
    port: int
    tls_certificate: Path
    tls_key: Path
    data_dir: Path
    authority: bytes
    rosters: tuple[Roster, ...]
    rosters_file: Path
    min_cohort: int
    app_rules: Rules
    approved_apps: ApprovedApps | None
    objects: str
    database: str = field(repr=False)
    operator_token_sha256: bytes = field(repr=False)
    metrics_listen: str
    traces: str
    trust_proxy: tuple[str, ...] = ()
    accel_location: str = ""
    keep_runs: int = 0
    keep_days: int = 0

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read and check the server's folder, or the federation's folder around it.

        Paths in server.toml are relative to it. Raises KitError or UnknownKey.
        """
        folder = kit_folder(folder, SERVER_FILE, "server")
        path = folder / SERVER_FILE
        types: dict[str, type] = {
            "port": int,
            "min-cohort": int,
            "app-env": list,
            "app-read": list,
            "app-sandbox": bool,
            "approve-apps": str,
            "database": str,
            "objects": str,
            "metrics-listen": str,
            "traces": str,
            "trust-proxy": list,
            "accel-location": str,
            "keep-runs": int,
            "keep-days": int,
        }
        paths = ("tls-certificate", "tls-key", "rosters", "authority", "operator-token-sha256", "data-dir")
        types |= dict.fromkeys(("federation", "host", *paths), str)
        own = ("min-cohort", "database", "objects", "metrics-listen", "traces", "trust-proxy", "accel-location")
        optional = frozenset({*own, *_APP_KEYS, *_KEEPING_KEYS})
        values = read_toml(path, types, optional=optional)
        objects = values.get("objects", "")
        if not 0 <= values["port"] <= 65535:
            raise broken(path, "port must be between 0 and 65535", "mend the line")
        authority = read_authority(folder / values["authority"])
        _check_tls(folder / values["tls-certificate"], folder / values["tls-key"])
        rosters = load_chain(folder / values["rosters"], authority)
        _check_federation(path, rosters[-1], values["federation"])
        least = values.get("min-cohort", Policy.default(len(rosters[-1].members)).min_cohort)
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
            database=values.get("database", ""),
            objects=str(folder / objects) if objects and "://" not in objects else objects,
            authority=authority,
            rosters=rosters,
            rosters_file=folder / values["rosters"],
            min_cohort=least,
            app_rules=_app_rules(path, values),
            approved_apps=_approved_apps(path, values),
            operator_token_sha256=_token_hash(folder / values["operator-token-sha256"]),
            metrics_listen=_listen(path, values.get("metrics-listen", "")),
            traces=values.get("traces", ""),
            trust_proxy=_proxies(path, values.get("trust-proxy", [])),
            accel_location=_location(path, values),
            keep_runs=_limit(path, values, "keep-runs"),
            keep_days=_limit(path, values, "keep-days"),
        )

    @property
    def roster(self) -> Roster:
        """The newest roster."""
        return self.rosters[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorKit:
    """What an operator needs to submit runs: the server's addresses, its CA, and a bearer token.

    servers: where the federation's server is found, in the order in which it is tried.
    authority: the raw Ed25519 key (32 bytes) that signs the rosters, for the check of the transcript.
    """

    folder: Path
    federation: str
    servers: tuple[str, ...]
    ca_file: Path | None
    authority: bytes
    token: str = field(repr=False)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read and check the operator's folder, or the federation's folder around it.

        Raises KitError or UnknownKey.
        """
        folder = kit_folder(folder, OPERATOR_FILE, "operator")
        path = folder / OPERATOR_FILE
        values = read_toml(path, {"federation": str, **_REACHED}, optional=_REACHED)
        return cls(
            folder=folder,
            federation=values["federation"],
            servers=_servers(path, values),
            ca_file=_trusted(folder, values),
            authority=read_authority(folder / AUTHORITY_FILE),
            token=_token(folder / TOKEN_FILE),
        )


def kit_folder(folder: Path, file: str, below: str | None = None) -> Path:
    """The absolute folder that holds `file`: `folder` itself, or `folder/below`."""
    folder = folder.absolute()
    for candidate in (folder, folder / below) if below else (folder,):
        if (candidate / file).exists():
            return candidate
    known = folder.is_dir()
    reason = f"there is no {file} in this folder" if known else "there is no such folder"
    raise broken(
        folder, reason, f"name the folder that holds {file}, or {REMEDY}", check="no-kit" if known else "no-folder"
    )


def _approved_apps(path: Path, values: Mapping[str, Any]) -> ApprovedApps | None:
    asked = values.get("approve-apps", LISTED)
    if asked not in (LISTED, ANY):
        raise broken(path, f'approve-apps must be "{LISTED}" or "{ANY}"', "mend the line")
    return ApprovedApps(path.parent / APPROVED_FILE) if asked == LISTED else None


def _proxies(path: Path, texts: list[Any]) -> tuple[str, ...]:
    for text in texts:
        try:
            ipaddress.ip_network(text, strict=False)
        except (TypeError, ValueError):
            raise broken(
                path,
                "trust-proxy must list addresses or networks of proxies",
                'mend the line, for example trust-proxy = ["10.0.0.2"]',
            ) from None
    return tuple(texts)


def _location(path: Path, values: Mapping[str, Any]) -> str:
    text: str = values.get("accel-location", "")
    if text and not re.fullmatch(r"/([A-Za-z0-9_-]+/)+", text):
        what = 'mend the line, for example accel-location = "/fedcore-files/"'
        raise broken(path, "accel-location must be a location of nginx that begins and ends with a slash", what)
    if text and not values.get("trust-proxy"):
        what = 'name that nginx, for example trust-proxy = ["10.0.0.2"]'
        raise broken(
            path,
            "accel-location needs trust-proxy: the server tells only an nginx that is named there where files are",
            what,
        )
    return text


def _limit(path: Path, values: Mapping[str, Any], key: str) -> int:
    limit: int = values.get(key, 0)
    if limit < 0:
        raise broken(path, f"{key} must not be negative; 0 stands for no limit", "mend the line")
    return limit


def _app_rules(path: Path, values: Mapping[str, Any]) -> Rules:
    env, read = values.get("app-env", []), values.get("app-read", [])
    if not all(isinstance(text, str) for text in (*env, *read)):
        raise broken(path, "app-env and app-read must be lists of texts", "mend the line")
    return Rules(
        variables=tuple(env),
        read=tuple(path.parent / text for text in read),
        confined=values.get("app-sandbox", True),
    )


def _listen(path: Path, address: str) -> str:
    host, _, port = address.rpartition(":")
    if address and not (host and port.isascii() and port.isdecimal() and 0 < int(port) <= 65535):
        raise broken(path, "metrics-listen must look like 127.0.0.1:9464", "mend the line")
    return address


def _check_federation(path: Path, roster: Roster, federation: str) -> None:
    if roster.federation != federation:
        raise broken(
            path,
            f"the roster is for the federation {roster.federation!r}, not {federation!r}",
            check="other-federation",
        )


def _check_membership(path: Path, roster: Roster, client_id: int, name: str) -> None:
    if client_id not in roster.names:
        raise broken(path, f"client {client_id} is not on the roster", check="not-on-roster")
    if name != roster.names[client_id]:
        raise broken(path, f"the roster has another name for client {client_id}", check="other-name")
    if client_id not in roster.keys:
        raise broken(
            path,
            f"roster {roster.version} revokes this client",
            "ask the authority; a new kit needs a new name",
            check="revoked",
        )


def _servers(path: Path, values: Mapping[str, Any]) -> tuple[str, ...]:
    """The addresses of `server-url` and of `servers`, each once."""
    named = [values["server-url"]] if "server-url" in values else []
    servers = tuple(dict.fromkeys(_server_url(path, url) for url in (*named, *values.get("servers", ()))))
    if not servers:
        raise broken(
            path,
            "it names no server",
            'write server-url = "https://host:port", or servers = [...] for several',
            check="no-server",
        )
    return servers


def _server_url(path: Path, url: object) -> str:
    if not isinstance(url, str):
        raise broken(path, "servers must be a list of texts", "mend the line")
    try:
        parts = urlsplit(url)
        sound = parts.scheme == "https" and parts.hostname and parts.port != 0 and not (parts.query or parts.fragment)
    except ValueError:
        sound = False
    if not sound:
        raise broken(
            path, "server-url must look like https://host:port, and so must what servers lists", "mend the line"
        )
    return url.rstrip("/")


def _node_config(path: Path, values: Mapping[str, object]) -> Mapping[str, NodeValue]:
    checked: dict[str, NodeValue] = {}
    for key, value in values.items():
        if not isinstance(value, bool | int | float | str):
            raise broken(path, f"node-config.{key} must be a number, a string, true or false", "mend the line")
        checked[key] = value
    return MappingProxyType(checked)


def _trusted(folder: Path, values: Mapping[str, Any]) -> Path | None:
    named = values.get("tls-ca", CA_FILE)
    if named == SYSTEM_CAS:
        return None
    read_certificate(folder / named)
    path: Path = folder / named
    return path


def _check_tls(certificate: Path, key: Path) -> None:
    if read_certificate(certificate).public_key() != read_private_key(key).public_key():
        raise broken(key, f"not the key of the certificate {certificate.name}", check="other-key")


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
