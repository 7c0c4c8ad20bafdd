"""Limits and times of one server process, and where it keeps its files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from fedcore.federation import ServerKit
from fedcore.federation.approval import ApprovedApps
from fedcore.federation.kits.oidc_settings import OidcSettings
from fedcore.system.sandbox.sandbox import Rules

DATABASE_FILE: Final = "server.sqlite3"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What holds for the whole process; what holds for a run is in `fedcore.run.settings.JobSettings`.

    data_dir: database, spool and runs. The limits are for tests to change.
    database: URL of a PostgreSQL database, which may hold a password; "" for SQLite in the data folder.
    objects: where large files go: "" for the data folder, a folder, or `s3://bucket/prefix`.
    heartbeat_seconds: how often clients send a heartbeat.
    stall_seconds: a request body that makes no progress for longer is dropped.
    header_seconds: limit on a request's head and on the TLS handshake.
    header_bytes: limit on a request's head.
    strangers_a_second: requests of one address that are open to everybody or wrongly signed; after ten times as many
        they wait.
    reserve_bytes: disk space that no upload may use.
    waiting_runs: longest queue.
    grace_seconds: how long a missing client delays an exchange that has enough others, and how long an exchange that
        cannot succeed waits to learn whether all clients have the same reason.
    retry_seconds: pause before the first retry of an exchange; doubles with each further one (`fedcore.run.retries`).
    keep_runs: how many ended runs are kept; 0 for all.
    keep_days: how long ended runs are kept; 0 for ever.
    lease_seconds: how long one server of several leads without renewing its lease.
    url: address on which this server listens.
    address: address at which clients reach this server, as their kits have it; "" if it is not known.
    public_url: address at which people reach the federation, for links; "" for one that the certificate names.
    certificate: of this server; None if something else serves TLS.
    accel_location: where an nginx in front serves files of the data folder; "" for none.
    app_rules: what a ServerApp may see in addition to its own files.
    approved_apps: apps that may run; None for all.
    oidc: the identity provider at which people may sign in; None for none.
    """

    data_dir: Path
    database: str = field(default="", repr=False)
    objects: str = ""
    heartbeat_seconds: float = 3.0
    stall_seconds: float = 30.0
    header_seconds: float = 10.0
    header_bytes: int = 64 * 1024
    strangers_a_second: float = 50.0
    reserve_bytes: int = 64 << 20
    waiting_runs: int = 32
    grace_seconds: float = 5.0
    retry_seconds: float = 2.0
    keep_runs: int = 0
    keep_days: float = 0.0
    lease_seconds: float = 10.0
    url: str = ""
    address: str = ""
    public_url: str = ""
    certificate: Path | None = None
    accel_location: str = ""
    app_rules: Rules = field(default_factory=Rules)
    approved_apps: ApprovedApps | None = None
    oidc: OidcSettings | None = None

    @classmethod
    def of_kit(cls, kit: ServerKit, *, data_dir: Path | None, database: str, url: str, address: str = "") -> Self:
        """Settings of a server with this kit.

        data_dir
            The data folder; None for that of the kit.
        database
            URL of a PostgreSQL database; "" for that of the kit.
        url
            Address on which the server listens.
        address
            Address at which clients reach it; "" for that of the kit.
        """
        return cls(
            data_dir=(data_dir or kit.data_dir).absolute(),
            database=database or kit.database,
            objects=kit.objects,
            accel_location=kit.accel_location,
            keep_runs=kit.keep_runs,
            keep_days=kit.keep_days,
            url=url,
            address=address or kit.address,
            public_url=kit.public_url,
            certificate=kit.tls_certificate,
            app_rules=kit.app_rules,
            approved_apps=kit.approved_apps,
            oidc=kit.oidc,
        )

    @property
    def shared(self) -> bool:
        """Whether other servers may use the same database."""
        return bool(self.database)

    @property
    def spool_dir(self) -> Path:
        """Bodies on their way in; what is found here at a start is left over and removed."""
        return self.data_dir / "spool"

    @property
    def runs_dir(self) -> Path:
        """The objects of runs, if these are kept in the data folder."""
        return self.data_dir / "runs"

    @property
    def work_dir(self) -> Path:
        """Folders in which ServerApps work, of this process alone; what is found here at a start is removed."""
        return self.data_dir / "work"

    @property
    def database_file(self) -> Path:
        """The SQLite file, if no other database is named."""
        return self.data_dir / DATABASE_FILE

    def not_approved(self, sha256: str) -> str:
        """Why an app may not run; empty if it may. Reads a file."""
        if self.approved_apps is None or sha256 in self.approved_apps.load():
            return ""
        return (
            f"the server's owner has not approved the app {sha256}; ask for it: "
            "fedcore server approve APP_DIR --federation DIR"
        )
