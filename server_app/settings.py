"""Limits and times of one server process, and where it keeps its files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fedcore.federation.approval import ApprovedApps
from fedcore.system.sandbox import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What holds for the whole process; what holds for a run is in `fedcore.config.JobSettings`.

    data_dir: database, spool and runs. The limits are for tests to change. heartbeat_seconds: how often clients are
    asked to sign in. stall_seconds: a request body that makes no progress for longer is dropped. header_seconds and
    header_bytes: limits on a request's head, the former also on the TLS handshake. reserve_bytes: disk space that no
    upload may use up. waiting_runs: longest queue. grace_seconds: how long a client that was asked for, but is not
    there although enough others are, holds up an exchange; and how long one that cannot succeed waits to hear whether
    all clients have the same reason. app_rules: what a ServerApp may see beside its own files. approved_apps: those
    that may run; None for all.
    """

    data_dir: Path
    heartbeat_seconds: float = 3.0
    stall_seconds: float = 30.0
    header_seconds: float = 10.0
    header_bytes: int = 64 * 1024
    reserve_bytes: int = 64 << 20
    waiting_runs: int = 32
    grace_seconds: float = 5.0
    app_rules: Rules = field(default_factory=Rules)
    approved_apps: ApprovedApps | None = None

    @property
    def spool_dir(self) -> Path:
        """Bodies on their way in; what is found here at a start is left over and removed."""
        return self.data_dir / "spool"

    @property
    def runs_dir(self) -> Path:
        """One folder for each run: its app, its models, its exchanges."""
        return self.data_dir / "runs"

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.data_dir / "server.sqlite3"
