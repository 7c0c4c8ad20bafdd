"""The kits of server, client and operator: a folder each with what it needs from the federation.

A kit is checked as a whole when it is loaded: the roster's signature, that the keys fit each other,
and that nobody but their owner can read the secrets. Secrets stay out of every repr.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from fedcore.federation.approval import ApprovedApps
from fedcore.federation.chain import load_chain
from fedcore.federation.files import (
    REMEDY,
    broken,
    read_authority,
    read_certificate,
    read_toml,
)
from fedcore.federation.kits.identity import open_identity
from fedcore.federation.kits.kit_values import (
    NodeValue,
    accel_location,
    app_rules,
    approved_apps,
    bearer_token,
    check_federation,
    check_membership,
    check_tls,
    https_address,
    limit_of,
    listen_address,
    node_config,
    progress_seconds,
    proxies,
    server_urls,
    session_of,
    token_hash,
)
from fedcore.federation.kits.oidc_settings import TABLE, OidcSettings
from fedcore.federation.kits.rank_jobs import RankJobs
from fedcore.federation.policy import Policy
from fedcore.federation.roster import Roster
from fedcore.secagg import Signer
from fedcore.system.sandbox.sandbox import Rules

SERVER_FILE: Final = "server.toml"
CLIENT_FILE: Final = "client.toml"
OPERATOR_FILE: Final = "operator.toml"
POLICY_FILE: Final = "policy.toml"
ROSTER_FILE: Final = "roster.json"
ROSTERS_FILE: Final = "rosters.json"
AUTHORITY_FILE: Final = "authority.pub"
CA_FILE: Final = "ca.crt"
SYSTEM_CAS: Final = "system"
"""In place of a file: the authorities that the machine trusts."""
CERTIFICATE_FILE: Final = "server.crt"
AUTHORITY_SETTINGS: Final = "federation.toml"
AUTHORITY_KEY: Final = "authority.key"
CA_KEY: Final = "ca.key"
TOKEN_FILE: Final = "token"  # noqa: S105 - the name of a file
TOKEN_VARIABLE: Final = "FEDCORE_TOKEN"  # noqa: S105 - of a variable
SESSION_FILE: Final = "session"

_REACHED: Final[Mapping[str, type]] = {"server-url": str, "servers": list, "tls-ca": str}
_OF_CLIENT: Final[Mapping[str, type]] = {"traces": str, "progress-seconds": float, "ranks": dict}
"""Further keys that client.toml may have."""
_REQUIRED_KEYS: Final[Mapping[str, type]] = {
    "federation": str,
    "host": str,
    "port": int,
    **dict.fromkeys(("tls-certificate", "tls-key", "rosters", "authority", "operator-token-sha256", "data-dir"), str),
}
"""Keys that server.toml must have."""
_OPTIONAL_KEYS: Final[Mapping[str, type]] = {
    **dict.fromkeys(("approve-apps", "database", "objects", "metrics-listen", "traces", "accel-location"), str),
    **dict.fromkeys(("app-user", "public-url", "address"), str),
    **dict.fromkeys(("app-env", "app-read", "trust-proxy"), list),
    **dict.fromkeys(("min-cohort", "keep-runs", "keep-days"), int),
    "app-sandbox": bool,
    TABLE: dict,
}
"""Keys that it may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientKit:
    """What one client needs to take part.

    servers: the addresses of the federation's server, in the order in which they are tried.
    identity: signs everything that this client says, with the key that the roster has for it.
    authority: the pinned raw Ed25519 key (32 bytes) that signs the roster.
    ca_file: the certificate authorities that the client trusts for the server's TLS certificate, the federation's own
        unless `tls-ca` names others; None for those of the system.
    node_config: what a Flower ClientApp sees as `context.node_config`.
    roster: the newest that this client has verified.
    traces: the OTLP endpoint for spans of the client's work, empty for none.
    progress_seconds: how long a rank may be in a loop over batches without another step; 0 for any time.
    jobs: of a cluster, in which the ranks run; None for processes of the agent's machine.
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
    progress_seconds: float = 0.0
    jobs: RankJobs | None = None

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read and check a client's folder; raises KitError or UnknownKey."""
        folder = kit_folder(folder, CLIENT_FILE)
        path = folder / CLIENT_FILE
        values = read_toml(
            path,
            {"federation": str, "client-id": int, "name": str, "node-config": dict, **_OF_CLIENT, **_REACHED},
            optional={*_OF_CLIENT, *_REACHED},
        )
        authority = read_authority(folder / AUTHORITY_FILE)
        roster = Roster.load(folder / ROSTER_FILE, authority)
        check_federation(path, roster, values["federation"])
        check_membership(path, roster, values["client-id"], values["name"])
        return cls(
            folder=folder,
            federation=values["federation"],
            client_id=values["client-id"],
            name=values["name"],
            servers=server_urls(path, values),
            node_config=node_config(path, values["node-config"]),
            identity=open_identity(folder, roster.keys[values["client-id"]]),
            authority=authority,
            ca_file=_ca_file(folder, values),
            roster=roster,
            policy=Policy.load(folder / POLICY_FILE),
            traces=values.get("traces", ""),
            progress_seconds=progress_seconds(path, values),
            jobs=RankJobs.parse(path, values),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKit:
    """What the server needs: where it listens, its certificate, the rosters, where it keeps its data.

    rosters: all versions, in order.
    rosters_file: the file that has them.
    min_cohort: the fewest clients of a secure sum in addition to those that may collude with the server, as the
        clients' policies say; every one of them refuses a server that asks for less.
    database: URL of a PostgreSQL database, "" for SQLite in the data folder.
    objects: where large files go, "" for the data folder, a folder, or `s3://bucket/prefix`.
    app_rules: what a ServerApp may see in addition to its own files.
    approved_apps: those that may run; None for all.
    keep_runs: how many runs that have ended stay on the server; 0 for no limit.
    keep_days: for how long they stay; 0 for no limit.
    trust_proxy: addresses and networks of proxies whose word for where a request comes from is taken.
    accel_location: of an nginx that shares the data folder: the location under which that hands out the server's files
        (X-Accel-Redirect); "" if the server sends them itself.
    operator_token_sha256: SHA-256 of the operator's bearer token, 32 bytes; it has no copy of it.
    metrics_listen: "host:port" of the metrics, empty for none.
    traces: the OTLP endpoint, empty for none.
    oidc: the identity provider at which people may sign in; None for none.
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
    public_url: str = ""
    address: str = ""
    oidc: OidcSettings | None = None

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read and check the server's folder, or the federation's folder around it.

        Paths in server.toml are relative to it. Raises KitError or UnknownKey.
        """
        folder = kit_folder(folder, SERVER_FILE, "server")
        path = folder / SERVER_FILE
        values = read_toml(path, {**_REQUIRED_KEYS, **_OPTIONAL_KEYS}, optional=_OPTIONAL_KEYS)
        objects = values.get("objects", "")
        if not 0 <= values["port"] <= 65535:
            raise broken(path, "port must be between 0 and 65535", "mend the line")
        authority = read_authority(folder / values["authority"])
        check_tls(folder / values["tls-certificate"], folder / values["tls-key"])
        rosters = load_chain(folder / values["rosters"], authority)
        check_federation(path, rosters[-1], values["federation"])
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
            app_rules=app_rules(path, values),
            approved_apps=approved_apps(path, values),
            operator_token_sha256=token_hash(folder / values["operator-token-sha256"]),
            metrics_listen=listen_address(path, values.get("metrics-listen", "")),
            traces=values.get("traces", ""),
            trust_proxy=proxies(path, values.get("trust-proxy", [])),
            accel_location=accel_location(path, values),
            keep_runs=limit_of(path, values, "keep-runs"),
            keep_days=limit_of(path, values, "keep-days"),
            public_url=https_address(path, "public-url", values.get("public-url", "")),
            address=https_address(path, "address", values.get("address", "")),
            oidc=OidcSettings.of_table(path, values[TABLE]) if TABLE in values else None,
        )

    @property
    def roster(self) -> Roster:
        """The newest roster."""
        return self.rosters[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorKit:
    """What an operator needs to submit runs: the server's addresses, its CA, and a bearer token or a session.

    servers: the addresses of the federation's server, in the order in which they are tried.
    authority: the raw Ed25519 key (32 bytes) that signs the rosters, for the check of the transcript.
    token: the bearer token; "" if there is a session.
    session: the session that `fedcore login` began; "" for none.
    """

    folder: Path
    federation: str
    servers: tuple[str, ...]
    ca_file: Path | None
    authority: bytes
    token: str = field(repr=False)
    session: str = field(default="", repr=False)

    @classmethod
    def load(cls, folder: Path, *, needs_token: bool = True) -> Self:
        """Read and check the operator's folder, or the federation's folder around it.

        The variable FEDCORE_TOKEN counts first, then the session of `fedcore login`, then the file `token`. Raises
        KitError or UnknownKey.

        Args:
            folder: of the kit.
            needs_token: whether none of the three is an error.
        """
        folder = kit_folder(folder, OPERATOR_FILE, "operator")
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        session = "" if token else session_of(folder / SESSION_FILE)
        path = folder / OPERATOR_FILE
        values = read_toml(path, {"federation": str, **_REACHED}, optional=_REACHED)
        return cls(
            folder=folder,
            federation=values["federation"],
            servers=server_urls(path, values),
            ca_file=_ca_file(folder, values),
            authority=read_authority(folder / AUTHORITY_FILE),
            token=token or (bearer_token(folder / TOKEN_FILE) if needs_token and not session else ""),
            session=session,
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


def _ca_file(folder: Path, values: Mapping[str, Any]) -> Path | None:
    named = values.get("tls-ca", CA_FILE)
    if named == SYSTEM_CAS:
        return None
    read_certificate(folder / named)
    path: Path = folder / named
    return path
