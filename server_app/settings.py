"""Limits and times of one server process, and where it keeps its files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fedcore.federation.approval import ApprovedApps
from fedcore.system.sandbox.sandbox import Rules

DATABASE_FILE: Final = "server.sqlite3"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What holds for the whole process; what holds for a run is in `fedcore.run.settings.JobSettings`.

    data_dir: database, spool and runs. database: URL of a PostgreSQL database, which may hold a password; "" for SQLite
    in the data folder. objects: where large files go, "" for the data folder, a folder, or `s3://bucket/prefix`. The
    limits are for tests to change. heartbeat_seconds: how often clients are
    asked to sign in. stall_seconds: a request body that makes no progress for longer is dropped. header_seconds and
    header_bytes: limits on a request's head, the former also on the TLS handshake. strangers_a_second: requests of one
    address that are open to everybody or wrongly signed; after ten times as many they wait. reserve_bytes: disk space
    that no upload may use up. waiting_runs: longest queue. grace_seconds: how long a client that was asked for, but is
    not there although enough others are, holds up an exchange; and how long one that cannot succeed waits to hear
    whether all clients have the same reason. keep_runs, keep_days: of runs that have ended, how many are kept, and how
    long; 0 for no limit. retry_seconds: how long after an attempt at an exchange that failed at once the next one
    begins; twice as long after each further one (`fedcore.run.retries`). lease_seconds: how long a server of several
    leads without renewing that. url: where others find it.
    accel_location: where an nginx in front hands out files of the data folder; "" for none. app_rules: what a
    ServerApp may see beside its own files. approved_apps: those that may run; None for all.
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
    accel_location: str = ""
    app_rules: Rules = field(default_factory=Rules)
    approved_apps: ApprovedApps | None = None

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
        """The objects of runs, where these are kept in the data folder."""
        return self.data_dir / "runs"

    @property
    def work_dir(self) -> Path:
        """Folders in which ServerApps work, of this process alone; what is found here at a start is removed."""
        return self.data_dir / "work"

    @property
    def database_file(self) -> Path:
        """The SQLite file, where no other database is named."""
        return self.data_dir / DATABASE_FILE

    def not_approved(self, sha256: str) -> str:
        """Why an app may not run, empty where it may; reads a file."""
        if self.approved_apps is None or sha256 in self.approved_apps.load():
            return ""
        return (
            f"the server's owner has not approved the app {sha256}; ask for it: "
            "fedcore server approve APP_DIR --federation DIR"
        )
