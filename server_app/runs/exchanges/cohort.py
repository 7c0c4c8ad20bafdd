"""Choosing a cohort: who is there, has the right app, and how long to wait for more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from fedcore.errors import RoundFailed
from fedcore.run.requirements import (
    check_cohort_request,
    choose_cohort,
    extra_clients,
    least_group,
    min_clients_for,
    waiting_for,
    why_all_evaluate,
)
from fedcore.secagg import Fault
from fedcore.wire.events import ClientDropped, ClientsOnline, Warned, name_some
from fedcore.wire.tasks import is_query, is_training
from server_app.runs.event_log import EventLog
from server_app.runs.exchanges.slow_lines import Sizes, SlowLines
from server_app.runs.plan import RunPlan
from server_app.services import Services

_TICK_SECONDS: Final = 0.1
_MOST_NAMED: Final = 5


class CohortSelection:
    """Waits for the clients of one run."""

    def __init__(self, services: Services, plan: RunPlan, event_log: EventLog) -> None:
        self._services = services
        self._plan = plan
        self._settings = plan.settings
        self._event_log = event_log
        self._reported: tuple[frozenset[int], int] | None = None
        self._was_short = False
        self._known: frozenset[int] = frozenset()
        self._mismatched: set[int] = set()
        self._refusals: dict[int, str] = {}
        self._cheats: dict[int, Fault] = {}
        self._all_evaluate = ""
        self.slow_lines = SlowLines(services, plan.settings, event_log)

    def exclude(self, blamed: Mapping[int, Fault]) -> None:
        """Ask these no more for the rest of the run."""
        self._cheats.update(blamed)

    def without_cheats(self, clients: Sequence[int]) -> list[int]:
        """Those of `clients` that may be asked at all."""
        return [client for client in clients if client not in self._cheats]

    @property
    def members(self) -> frozenset[int]:
        """Who may be asked at all."""
        return frozenset(self._services.roster.keys) - self._cheats.keys()

    async def nodes(self) -> list[int]:
        """Clients that can be asked now, as many as the run needs or more; raises RoundFailed."""
        least = self._least(len(self.members))
        return sorted(await self._wait(self.members, least, least))

    def waiting(self, nodes: int, setting: str) -> str:
        """For whom the ServerApp waits that waits for `nodes` nodes, 0 if that is not known, by a setting."""
        presence, within, members = self._services.presence, self._settings.liveness_seconds, self.members
        present, online = self._present(members), presence.online(within)
        other = presence.mismatched(self._plan.app_sha256, within)
        missing = []
        for client in sorted(members - present):
            why = "has another app" if client in other else "may not train now" if client in online else "not connected"
            why = "is refused" if client in presence.refusals else why
            missing.append(f"{self._services.names[client]} ({why})")
        names = [*missing[:_MOST_NAMED], *([f"{len(missing) - _MOST_NAMED} more"] if missing[_MOST_NAMED:] else [])]
        return waiting_for(nodes, setting, len(present), len(members), names)

    def check(self, clients: int, message_type: str) -> None:
        """Refuse what asks too few clients; raises CohortBelowMinimum."""
        check_cohort_request(clients, self._settings, *self._sizes, message_type=message_type)

    async def evaluators(self, requested: tuple[int, ...], message_type: str) -> tuple[int, ...]:
        """Whom an exchange asks: for an evaluation of too few for a sum all who are there, which is said once.

        Raises RoundFailed.
        """
        line = why_all_evaluate(len(requested), self._settings, *self._sizes, message_type=message_type)
        if not line:
            return requested
        if line != self._all_evaluate:
            self._all_evaluate = line
            self._event_log.add(Warned(line=line))
        return tuple(await self.nodes())

    async def cohort(
        self,
        requested: tuple[int, ...],
        attempt: int,
        *,
        message_type: str,
        same: tuple[int, ...] | None = None,
        sizes: Sizes,
    ) -> list[int]:
        """Those of `requested` that are there; raises RoundFailed if too few come in time.

        Other clients may stand in for those that left, the federation or an earlier attempt: in secure mode all get the
        same message and the reply is the mean, so it does not matter who is asked. But for a repeat of a sum that was
        signed already, which clients take part in together with the `same` ones only. With over-selection more are
        asked than `requested` names, if they are there. In a buffered run an evaluation goes to clients that do not
        train now.

        sizes
            What each of them downloads and uploads.
        """
        chosen, members = frozenset(requested if same is None else same), self.members
        least = max(self._least(len(chosen)), self._least_grouped(message_type))
        self.check(len(chosen), message_type)
        pool = chosen & members
        extra = 0 if same is not None else self._extra(len(chosen), message_type)
        if self._settings.aggregation == "secure" and same is None and (attempt > 1 or extra or pool < chosen):
            pool = members
        size = len(chosen) + extra
        busy = self._busy(message_type)
        enough = max(least, min(size, len(pool - busy())))
        present = await self._wait(pool, least, enough, busy, sizes=sizes if same is None else None)
        cohort = list(choose_cohort(chosen, present, size))
        self.slow_lines.announce(self._present(pool), cohort, sizes)
        return cohort

    async def come_back(self, clients: Collection[int], least: int) -> bool:
        """Wait until so many of these are there, join-seconds at most; whether they are.

        For a sum that nobody can stand in at: its clients may have lost this server a moment ago, or have not found it
        again since it was started.
        """
        began, pool = self._services.clock(), frozenset(clients)
        while len(self._present(pool)) < least:
            if self._services.clock() - began >= self._settings.join_seconds:
                return False
            await asyncio.sleep(_TICK_SECONDS)
        return True

    def enough(self, requested: tuple[int, ...], message_type: str) -> int:
        """With how many updates an exchange for `requested` need not wait for more; 0 if it waits for everybody."""
        return len(frozenset(requested)) if self._extra(len(frozenset(requested)), message_type) else 0

    def _extra(self, clients: int, message_type: str) -> int:
        """How many are asked beyond those; none for a query, whose sum is to be over everybody that was asked."""
        return 0 if is_query(message_type) else extra_clients(clients, self._settings)

    def _least_grouped(self, message_type: str) -> int:
        """How many clients as many groups need as have to give a sum; 0 if the cohort is not cut."""
        settings = self._settings
        if settings.groups == 1 or not is_training(message_type):
            return 0
        return settings.least_groups * least_group(settings, *self._sizes)

    @property
    def _sizes(self) -> tuple[int, int]:
        """How many members the federation has, and the least cohort of their policies."""
        return len(self._services.roster.members), self._services.min_cohort

    def _least(self, clients: int) -> int:
        return min_clients_for(clients, self._settings, *self._sizes)

    def _busy(self, message_type: str) -> Callable[[], frozenset[int]]:
        """Who has no ranks left for an evaluation, since it trains for a buffered run."""
        work = self._services.work
        return lambda: frozenset() if is_training(message_type) else work.busy

    async def _wait(
        self,
        pool: frozenset[int],
        least: int,
        enough: int,
        busy: Callable[[], frozenset[int]] = frozenset,
        *,
        sizes: Sizes | None = None,
    ) -> frozenset[int]:
        """Those of a pool that are there; with `sizes` without those that would miss their stage, if enough are left.

        An app's strategy that waits for so many nodes counts those that rest.
        """
        start = self._services.clock()
        since: float | None = None
        while True:
            present, enough_now = self._present(pool) - busy(), enough
            if sizes is not None:
                present, enough_now = self._without_slow(present, pool, least, enough, sizes)
            now = self._services.clock()
            if len(present) < least:
                since = None
            elif since is None:
                since = now
            late = since is not None and now - since >= self._services.settings.grace_seconds
            if len(present) >= enough_now or late:
                self._report_presence(present, pool, enough_now)
                return present
            hopeless = len(pool) < least and bool(self._cheats)
            if since is None and (hopeless or now - start >= self._settings.join_seconds):
                raise RoundFailed(self._shortage(pool, least, len(present)))
            self._report_presence(present, pool, enough)
            await asyncio.sleep(_TICK_SECONDS)

    def _without_slow(
        self, present: frozenset[int], pool: frozenset[int], least: int, enough: int, sizes: Sizes
    ) -> tuple[frozenset[int], int]:
        """Those present whose lines are quick enough, and how many are enough then; all if too few are."""
        services = self._services
        resting = services.lines.resting(self._settings.stage_seconds, services.clock()).keys()
        slow = (resting | self.slow_lines.too_slow(pool, sizes)) & pool
        if not slow or len(present - slow) < least:
            return present, enough
        return present - slow, max(least, min(enough, len(pool) - len(slow)))

    def _present(self, pool: frozenset[int]) -> frozenset[int]:
        within = self._settings.liveness_seconds
        for client in (self._services.presence.mismatched(self._plan.app_sha256, within) & pool) - self._mismatched:
            self._note_mismatch(client)
        self._note_refusals(pool)
        return self._services.presence.eligible(self._plan.app_sha256, within) & pool

    def _note_refusals(self, pool: frozenset[int]) -> None:
        """Say once of each reason why a client of `pool` that is there counts as absent."""
        for client, why in sorted(self._services.presence.refusals.items()):
            if client in pool and self._refusals.get(client) != why:
                self._refusals[client] = why
                name = self._services.names[client]
                self._event_log.add(ClientDropped(exchange=0, client=name, stage="join", reason=f"is not asked: {why}"))

    def _shortage(self, pool: frozenset[int], least: int, present: int) -> str:
        online = self._services.presence.online(self._settings.liveness_seconds) & pool
        waiting = sum(map(self._services.presence.is_ineligible, online))
        more = f"; {waiting} more may not train now, by their owners' rules" if waiting else ""
        absent = self._names(pool - online)
        missing = f"; not connected: {name_some(absent)}" if absent else ""
        for client, why in sorted(self._services.presence.refusals.items()):
            missing += f"; {self._services.names[client]} is refused: {why}" if client in pool else ""
        if self._cheats:
            names = self._services.names
            cheats = (f"{names[client]}: {fault}" for client, fault in sorted(self._cheats.items()))
            missing += f"; excluded for protocol violations: {', '.join(cheats)}"
        after = f" after {self._settings.join_seconds:g} s" if len(pool) >= least else ""
        return f"{least} clients are needed, {present} are connected{after}{more}{missing}"

    def _note_mismatch(self, client: int) -> None:
        self._mismatched.add(client)
        reason = "is not asked: another app is installed there than the one of this run"
        self._event_log.add(ClientDropped(exchange=0, client=self._services.names[client], stage="join", reason=reason))

    def _report_presence(self, present: frozenset[int], pool: frozenset[int], enough: int) -> None:
        expected = max(enough, len(present))  # more may be there than the run waits for
        short = len(present) < expected
        # A round that asks some of those who are known to be there is no news.
        news = short or self._was_short or not present <= self._known
        if news and self._reported != (present, expected):
            self._reported, self._was_short = (present, expected), short
            self._known |= present
            online, absent = self._names(present), self._names(pool - present)
            reporting = self._names(present & self._services.presence.reporting)
            self._event_log.add(ClientsOnline(online=online, expected=expected, absent=absent, reporting=reporting))

    def _names(self, clients: frozenset[int]) -> list[str]:
        return [self._services.names[client] for client in sorted(clients)]
