"""What an exchange is made of, what comes out of it, and the account that is kept meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedcore.codec import Statistics
from fedcore.config import JobSettings
from fedcore.exchange import ExchangeReply
from fedcore.wire import MetricValue, Task
from server_app.http.guard import CountBytes
from server_app.http.polling import Bell
from server_app.runs.event_log import EventLog
from server_app.runs.presence import Presence
from server_app.storage.blobs import Spool
from server_app.storage.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeContext:
    """What an exchange is made of.

    names: client id -> name. folder: its files; made and removed by the caller. model: the file that
    clients fetch. clock: monotonic seconds. bell: rung when a client's poll may have an answer.
    threads: for folding and unmasking. grace_seconds: how long an exchange that cannot succeed waits
    to hear whether all clients have the same reason.
    """

    task: Task
    settings: JobSettings
    names: Mapping[int, str]
    folder: Path
    model: Path | None
    presence: Presence
    store: Store
    spool: Spool
    event_log: EventLog
    bell: Bell
    clock: Callable[[], float]
    threads: int
    upload_slack_bytes: int
    grace_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeResult:
    """What came out: the replies, whose contribution is in them, and figures to show.

    statistics: what a sum says about the size of updates, for the encoding of the next exchange.
    """

    replies: tuple[ExchangeReply, ...]
    survivors: frozenset[int]
    examples: int
    metrics: Mapping[str, MetricValue]
    clipped: int = 0
    statistics: Statistics | None = None


@dataclass(slots=True)
class _Bytes:
    up: int = 0
    down: int = 0


@dataclass(slots=True)
class Usage:
    """Bytes by client, and seconds by stage."""

    stage_seconds: dict[str, float] = field(default_factory=dict)
    _bytes: dict[int, _Bytes] = field(default_factory=dict)

    def byte_counter(self, client: int) -> CountBytes:
        """Where the guard enters a request of `client`."""
        entry = self._bytes.setdefault(client, _Bytes())

        def enter(up: int, down: int) -> None:
            entry.up += up
            entry.down += down

        return enter

    def up(self, names: Mapping[int, str]) -> dict[str, int]:
        """Bytes received, by client name."""
        return {names[client]: entry.up for client, entry in sorted(self._bytes.items())}

    def down(self, names: Mapping[int, str]) -> dict[str, int]:
        """Bytes sent, by client name."""
        return {names[client]: entry.down for client, entry in sorted(self._bytes.items())}
