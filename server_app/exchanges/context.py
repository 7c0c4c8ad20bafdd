"""What an exchange is made of, what comes out of it, and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedcore.codec import Decoded
from fedcore.config import JobSettings
from fedcore.exchange import ExchangeReply
from fedcore.plain_exchange import PlainReply
from fedcore.wire import MetricValue, Task
from server_app.http.guard import CountBytes
from server_app.runs.event_log import EventLog
from server_app.services import Services


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeContext:
    """What an exchange is made of.

    settings: the run's. folder: its files; made and removed by the caller. model: the file that clients fetch.
    """

    services: Services
    task: Task
    settings: JobSettings
    folder: Path
    model: Path | None
    event_log: EventLog


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeResult:
    """What came out: the replies, whose contribution is in them, and figures to show.

    decoded: what a sum says, for the encoding of the next exchange; None in plain mode. plain: the replies of a plain
    exchange.
    """

    replies: tuple[ExchangeReply, ...] = ()
    survivors: frozenset[int]
    examples: int
    metrics: Mapping[str, MetricValue]
    decoded: Decoded | None = None
    plain: tuple[PlainReply, ...] = ()


@dataclass(slots=True)
class ExchangeUsage:
    """Bytes received from and sent to each client, and seconds by stage."""

    stage_seconds: dict[str, float] = field(default_factory=dict)
    up: Counter[int] = field(default_factory=Counter)
    down: Counter[int] = field(default_factory=Counter)

    def byte_counter(self, client: int) -> CountBytes:
        """Where the guard enters a request of `client`."""

        def enter(up: int, down: int) -> None:
            self.up[client] += up
            self.down[client] += down

        return enter
