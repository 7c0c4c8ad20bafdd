"""What a server does while simulated devices work: whom it asks, for whom it waits, and who is too late for it.

All of it is what the real server does (`server_app/runs/exchanges/cohort.py`, `server_app/exchanges/exchange.py`),
with the times of `devices` in place of the wall clock's: a stage ends when all that are left have answered, or its time
is up, or, with over-selection, enough updates are there; a silent client is given up after `liveness-seconds`. As on
the clock of a comparison, only training takes time: evaluations, masking and sums cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from fedcore.errors import RoundFailed
from fedcore.run.requirements import choose_cohort, extra_clients
from fedcore.run.settings import JobSettings
from fedcore.simulation.devices.availability import NEVER
from fedcore.simulation.devices.clock import VirtualClock
from fedcore.simulation.devices.devices import Devices, Work, wait_until_present, work_of
from fedcore.simulation.devices.network import round_trip_seconds
from fedcore.wire.base import Scalar
from fedcore.wire.events import NOT_NEEDED
from fedcore.wire.tasks import Task

_KEY_STEPS: Final = ("advertise", "share")
_MOST_POLLS: Final = 10
"""How often a ServerApp may ask who is there between two exchanges before that is taken for a wait for more."""


@dataclass(slots=True, kw_only=True)
class VirtualScheduler:
    """The virtual clock of a run and what moves it. run_config: says how long clients train (`devices.work_of`)."""

    devices: Devices
    settings: JobSettings
    run_config: Mapping[str, Scalar]
    clock: VirtualClock = field(default_factory=VirtualClock)
    _lap: float = field(default=0.0, init=False)
    _polls: int = field(default=0, init=False)

    def nodes(self, clients: Sequence[int], *, least: int, enough: int) -> list[int]:
        """Who is there, once `least` are, as the run needs; raises RoundFailed if so many do not come.

        Args:
            enough: how many the caller waits for, and goes on asking until they are there; 0 if that is not known.
        """
        self._polls += 1
        present = self._wait(clients, least)
        if self._polls > _MOST_POLLS:  # a loop of the app's own, in which no time would pass
            enough = max(enough, min(len(present) + 1, len(clients)))
        if len(present) < enough:
            time, present = wait_until_present(self.devices, clients, self.clock.now, least=enough)
            if time == NEVER:
                when = f"from {self.clock.now:g} s of the virtual clock on"
                raise RoundFailed(f"waiting for {enough} clients; {when} so many are never available together")
            self.clock.advance_to(time)
        return present

    def there(self, clients: Iterable[int]) -> list[int]:
        """Who of the clients is there now."""
        return [client for client in clients if self.devices.is_there(client, self.clock.now)]

    def begin(self) -> None:
        """An exchange begins: the next request for nodes does not wait for more of them."""
        self._polls = 0

    def cohort(self, clients: Sequence[int], members: Sequence[int], *, least: int, extra: int) -> tuple[int, ...]:
        """Who takes part: those of `clients` that are there, and other members instead of those that are not.

        Args:
            least: how many it takes; raises RoundFailed if so many do not come within `join-seconds`.
            extra: how many take part beyond as many as `clients` are.
        """
        self.begin()
        present = self._wait(members, least)
        first = frozenset(clients)
        return choose_cohort(first, present, len(first) + extra)

    def beyond(self, size: int) -> int:
        """How many more clients train than a cohort of this size needs."""
        return extra_clients(size, self.settings)

    def _wait(self, clients: Sequence[int], least: int) -> list[int]:
        """Who is there, once `least` are; raises RoundFailed if that takes longer than `join-seconds`."""
        time, present = wait_until_present(self.devices, clients, self.clock.now, least=least)
        if time > self.clock.now + self.settings.join_seconds:
            self.clock.advance_to(self.clock.now + self.settings.join_seconds)
            there, seconds = len(self.there(clients)), self.settings.join_seconds
            raise RoundFailed(f"{least} clients are needed, {there} are connected after {seconds:g} s (join-seconds)")
        self.clock.advance_to(time)
        return present

    def lap(self) -> float:
        """Virtual seconds since this was asked last."""
        now, before = self.clock.now, self._lap
        self._lap = now
        return now - before

    def save(self) -> dict[str, Any]:
        """Where it stands, as JSON."""
        return {"now": self.clock.now, "lap": self._lap, "polls": self._polls}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Put it where it stood."""
        self.clock.now, self._lap, self._polls = saved["now"], saved["lap"], saved["polls"]


@dataclass(slots=True, kw_only=True)
class UpdateStage:
    """One attempt at a training exchange on the virtual clock; a context manager around it.

    down
        Bytes of what a client fetches.
    enough
        How many updates are enough; 0 to wait for everybody.
    trained
        Clients whose update is ready from an earlier attempt.
    vanished
        The steps at which clients disappeared for other reasons.
    """

    time: VirtualScheduler
    task: Task
    down: float
    enough: int = 0
    trained: set[int] = field(default_factory=set)
    vanished: set[str] = field(default_factory=set)
    _end: float = field(init=False)

    def __post_init__(self) -> None:
        self._end = self.time.clock.now

    def stragglers(self, examples: Mapping[int, int], up: float | Mapping[int, float]) -> dict[int, str]:
        """Whose update does not count, and why. examples: that clients trained on. up: bytes of an update."""
        start, devices = self.time.clock.now, self.time.devices
        liveness, limit = self.time.settings.liveness_seconds, self.task.seconds + self.time.settings.step_seconds
        arrivals: list[tuple[float, int]] = []
        absent: dict[int, tuple[float, str]] = {}
        for client, count in examples.items():
            sent = up[client] if isinstance(up, Mapping) else up
            work = self._work(client, count, sent, sharing=len(examples))
            finish = devices.finish_time(client, work, start, self.task.exchange)
            until = devices.until(client, start)
            if devices.work_seconds(client, work, self.task.exchange) > self.task.seconds:
                absent[client] = start + self.task.seconds, f"no result within {self.task.seconds:g} s"
            elif finish == NEVER:
                absent[client] = (until or start) + liveness, f"silent for more than {liveness:g} s"
            elif finish > start + limit:
                absent[client] = start + limit, f"no answer in stage input within {limit:g} s"
            else:
                arrivals.append((finish, client))
        self.trained.update(client for _, client in arrivals)
        return self._close(start, sorted(arrivals), absent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """The exchange is over, with or without a sum: so late is it now."""
        clock, settings = self.time.clock, self.time.settings
        secure = self.task.aggregation == "secure"
        around = round_trip_seconds(self.time.devices.network, secure=secure)[1]
        silent = settings.liveness_seconds * len(self.vanished - {"input", *_KEY_STEPS})
        clock.advance_to(max(self._end, clock.now) + around + silent)

    def _close(
        self, start: float, arrivals: Sequence[tuple[float, int]], absent: Mapping[int, tuple[float, str]]
    ) -> dict[int, str]:
        needed = max(self.enough, self.task.quorum)
        if self.enough and len(arrivals) >= needed:
            self._end = arrivals[needed - 1][0]
            late = {client: NOT_NEEDED for _, client in arrivals[needed:]}
            return late | {client: why if at <= self._end else NOT_NEEDED for client, (at, why) in absent.items()}
        times = [time for time, _ in arrivals] + [time for time, _ in absent.values()]
        if "input" in self.vanished:
            times.append(start + self.time.settings.liveness_seconds)
        self._end = max(times, default=start)
        return {client: why for client, (_, why) in absent.items()}

    def _work(self, client: int, examples: int, up: float, *, sharing: int) -> Work:
        steps, samples = (0, 0) if client in self.trained else work_of(self.time.run_config, examples)
        secure = self.task.aggregation == "secure"
        message_seconds = round_trip_seconds(self.time.devices.network, secure=secure)[0]
        message_seconds += self.time.settings.liveness_seconds * len(self.vanished.intersection(_KEY_STEPS))
        return Work(
            steps=steps, samples=samples, down=self.down, up=up, sharing=sharing, message_seconds=message_seconds
        )
