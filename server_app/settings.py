"""Limits and times of one server process, and where it keeps its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What holds for the whole process; what holds for a run is in `fedcore.config.JobSettings`.

    data_dir: database, spool and runs. heartbeat_seconds: how often clients are asked to sign in.
    poll_seconds: longest long poll. stall_seconds: a request body that makes no progress for longer
    is dropped. header_seconds and header_bytes: limits on a request's head. signature_seconds: how
    old a signed request may be. reserve_bytes: disk space that no upload may use up.
    bundle_bytes: largest app. waiting_runs: longest queue. upload_slack_bytes: how much longer than
    the model a plain upload may be (its header may be laid out differently).
    """

    data_dir: Path
    heartbeat_seconds: float = 3.0
    poll_seconds: float = 30.0
    stall_seconds: float = 30.0
    header_seconds: float = 30.0
    header_bytes: int = 64 * 1024
    signature_seconds: int = 300
    reserve_bytes: int = 64 * MIB
    bundle_bytes: int = 32 * MIB
    waiting_runs: int = 32
    upload_slack_bytes: int = MIB
    grace_seconds: float = 5.0

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
