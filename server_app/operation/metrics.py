"""What Prometheus reads of a server: counters of its runs' events, and a few gauges.

Every label has a handful of values, known beforehand; clients, runs and apps are none of them. Nothing here tells what
an update holds: all figures are such as the events have, which the server's operator sees anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import start_http_server

from fedcore.errors import DamagedAtRest, EnvironmentFailure, StorageDamaged, StorageFull, StorageUnavailable
from fedcore.wire.events import (
    ClientBlamed,
    ClientDropped,
    ExchangeDone,
    ExchangeFailed,
    ExchangeRepeated,
    GroupEnded,
    RunEvent,
    RunStarted,
)
from fedcore.wire.operator import RunStatus

_ROUND_BUCKETS: Final = (1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10800, 36000)
_STAGE_BUCKETS: Final = (0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10800)
_FOLD_BUCKETS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
_STATUS_CLASSES: Final = ("2xx", "3xx", "4xx", "5xx", "none")
_OUTCOMES: Final = ("done", "failed", "repeated")
_LOSING_STAGES: Final = ("join", "train", "draw", "advertise", "share", "input", "consistency", "unmask")
"""In which a client may be lost, of whatever kind the exchange is."""
_STORAGE_ERRORS: Final[Mapping[type[Exception], str]] = {
    StorageFull: "full",
    StorageUnavailable: "unavailable",
    StorageDamaged: "damaged",
    DamagedAtRest: "damaged",
}
_OTHER: Final = "other"


class Metrics:
    """The metrics of one process, in a registry of their own, so that servers in one process do not share any."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._observe_runs()
        self._observe_requests()
        self._observe_state()

    def _observe_runs(self) -> None:
        counter, histogram = self._counter, self._histogram
        self.runs = counter(
            "fedcore_runs", "Runs that ended, by status.", status=[one for one in RunStatus if one.final]
        )
        self.rounds = counter("fedcore_rounds", "Exchanges that ended, by outcome.", outcome=_OUTCOMES)
        self.groups = counter("fedcore_groups", "Sums of groups, by outcome.", outcome=_OUTCOMES[:2])
        self.round_seconds = histogram("fedcore_round_seconds", "Duration of exchanges that succeeded.", _ROUND_BUCKETS)
        self.stage_seconds = histogram(
            "fedcore_stage_seconds", "Duration of the stages of these exchanges, by stage.", _STAGE_BUCKETS, "stage"
        )
        self.dropouts = counter("fedcore_dropouts", "Clients that an exchange lost, by stage.", stage=_LOSING_STAGES)
        self.blamed = counter("fedcore_blamed", "Clients that violated the protocol, by stage.", stage=_LOSING_STAGES)
        self.bytes = counter(
            "fedcore_client_bytes", "Bytes from (up) and to (down) clients in exchanges.", direction=("up", "down")
        )
        self.failures = counter("fedcore_empty_contributions", "Clients in a sum that contributed nothing to it.")
        self.epsilon = self._gauge("fedcore_epsilon_spent", "Epsilon of the newest private run so far; 0 without one.")

    def _observe_requests(self) -> None:
        self.requests = self._counter(
            "fedcore_requests", "Requests, by class of response; none: the peer left first.", status=_STATUS_CLASSES
        )
        self.storage_errors = self._counter(
            "fedcore_storage_errors", "Failures of disk and database.", kind=(*_STORAGE_ERRORS.values(), _OTHER)
        )
        self.fold_seconds = self._histogram("fedcore_fold_seconds", "Adding one update to the sum.", _FOLD_BUCKETS)

    def _observe_state(self) -> None:
        self.waiting_runs = self._gauge("fedcore_runs_waiting", "Runs in the queue, without the one being led.")
        self.led_runs = self._gauge("fedcore_runs_led", "Runs that are led now: 0 or 1.")
        self.streams = self._gauge(
            "fedcore_streams_open", "Live streams to browsers, by role: operator or viewer.", "role"
        )
        self.clients = self._gauge("fedcore_clients_connected", "Clients that gave a sign of life in the last 30 s.")
        self.certificate = self._gauge("fedcore_certificate_days_left", "Days until the server's certificate ends.")
        self.database_clock = self._gauge(
            "fedcore_database_clock_seconds", "By how much the database's clock is ahead of this server's."
        )
        self.clients_off = self._gauge("fedcore_clients_with_wrong_clock", "Clients whose clock is off by over 5 s.")
        self.leader = self._gauge("fedcore_leader", "1 if this server leads, 0 if it stands by.")

    def observe(self, event: RunEvent) -> None:
        """An event of a run."""
        match event:
            case RunStarted():
                self.led_runs.set(1)
                self.epsilon.set(0)
            case ExchangeDone():
                self._observe_round(event)
            case ExchangeFailed():
                self.rounds.labels("failed").inc()
                self._observe_traffic(event)
            case ExchangeRepeated():
                self.rounds.labels("repeated").inc()
                self._observe_traffic(event)
            case GroupEnded(reason=reason):
                self.groups.labels("failed" if reason else "done").inc()
                self._observe_traffic(event)
            case ClientDropped(stage=stage):
                self.dropouts.labels(stage).inc()
            case ClientBlamed(stage=stage):
                self.blamed.labels(stage).inc()
            case _:
                pass

    def _observe_round(self, event: ExchangeDone) -> None:
        self.rounds.labels("done").inc()
        self.round_seconds.observe(event.seconds)
        for stage, seconds in event.stage_seconds.items():
            self.stage_seconds.labels(stage).observe(seconds)
        self._observe_traffic(event)
        self.failures.inc(event.failures)
        if event.epsilon_spent is not None:
            self.epsilon.set(event.epsilon_spent)

    def _observe_traffic(self, event: ExchangeDone | ExchangeFailed | ExchangeRepeated | GroupEnded) -> None:
        self.bytes.labels("up").inc(sum(event.bytes_up.values()))
        self.bytes.labels("down").inc(sum(event.bytes_down.values()))

    def run_ended(self, status: RunStatus) -> None:
        """A run that was led, or waited, has ended."""
        self.led_runs.set(0)
        self.runs.labels(status.value).inc()

    def answered(self, status: int) -> None:
        """A request was answered with `status`; 0 if its peer left before."""
        self.requests.labels(f"{status // 100}xx" if status else "none").inc()

    def storage_failed(self, error: Exception) -> None:
        """Disk or database failed."""
        self.storage_errors.labels(_STORAGE_ERRORS.get(type(error), _OTHER)).inc()

    def serve(self, address: str) -> Callable[[], None]:
        """Answer `/metrics` at "host:port" over plain HTTP, in a thread; returns what ends it.

        Raises EnvironmentFailure if the address cannot be had.
        """
        host, _, port = address.rpartition(":")
        try:
            server, thread = start_http_server(int(port), host.strip("[]"), registry=self.registry)
        except OSError as error:
            raise EnvironmentFailure(f"metrics-listen: cannot listen on {address}: {error.strerror}") from None

        def end() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return end

    def _counter(self, name: str, text: str, **labels: Iterable[str]) -> Counter:
        """labels: a name with all its values, which are there from the start: no increase is seen of what just came."""
        counter = Counter(name, text, tuple(labels), registry=self.registry)
        for values in labels.values():
            for value in values:
                counter.labels(value)
        return counter

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)
