"""Services that all parts of one server process share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedcore.secagg import Randomness
from fedcore.system.tracing import Traces
from fedcore.wire.events import EventSink, RunEvent
from server_app.members.client_work import ClientWork
from server_app.members.lines import Lines
from server_app.members.presence import Presence
from server_app.members.reach import Reach
from server_app.members.rosters import Rosters
from server_app.members.traffic import Traffic
from server_app.operation.certificate import ServedCertificate
from server_app.operation.clocks import Clocks
from server_app.operation.metrics import Metrics
from server_app.operation.round_spans import RoundSpans
from server_app.operation.server_view import ServerView
from server_app.operation.storage_health import StorageHealth
from server_app.polling import Bell
from server_app.settings import ServerSettings
from server_app.storage.blobs import Spool
from server_app.storage.objects import Objects
from server_app.storage.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Made once at the start; clock, wall clock, identifiers and randomness are arguments.

    min_cohort: fewest clients of a secure sum in addition to those that may collude, as policies require.
    clock: monotonic seconds.
    wall: seconds since 1970.
    threads: for adding vectors and unmasking.
    client_bell: rung when a client's poll may have an answer.
    run_bell: rung when a run's record grew.
    certificate: the one in use; None without TLS.
    server_view: of the newest exchange.
    work: what clients do for a buffered run.
    health: of database, disk and object store.
    traffic: all bytes of members and operators.
    clocks: how far others are from this server's.
    lines: how fast the clients' lines are, and who rests since its own is too slow.
    reach: whether any member reaches this server.
    """

    settings: ServerSettings
    roster: Rosters
    min_cohort: int
    store: Store
    objects: Objects
    spool: Spool
    presence: Presence
    clock: Callable[[], float]
    wall: Callable[[], float]
    new_id: Callable[[], str]
    randomness: Randomness = field(repr=False)
    threads: int
    client_bell: Bell = field(default_factory=Bell)
    run_bell: Bell = field(default_factory=Bell)
    metrics: Metrics = field(default_factory=Metrics)
    certificate: ServedCertificate | None = None
    traces: Traces = field(default_factory=Traces)
    server_view: ServerView = field(default_factory=ServerView)
    work: ClientWork = field(default_factory=ClientWork)
    health: StorageHealth = field(default_factory=StorageHealth)
    traffic: Traffic = field(default_factory=Traffic)
    lines: Lines = field(default_factory=Lines)
    clocks: Clocks = field(init=False)
    reach: Reach = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "clocks", Clocks(lambda: self.names, self.clock))
        # Two heartbeats of an exchange; a client that waits between two has a poll open.
        object.__setattr__(self, "reach", Reach(self.presence, 2 * self.settings.heartbeat_seconds))

    def observer(self, run: str) -> EventSink:
        """Gets the events of a run, for metrics and traces."""
        spans = RoundSpans(self.traces, run)

        def observe(event: RunEvent) -> None:
            self.metrics.observe(event)
            spans.observe(event)

        return observe

    @property
    def names(self) -> Mapping[int, str]:
        """Client id -> name, of members and former members."""
        return self.roster.names
