"""Which server of a federation leads it: takes its runs on, and answers its clients.

With SQLite that is the one that there is. Servers that share a PostgreSQL database hold a lease in turn: one leads, the
others stand by and try to take it. What the leader writes is fenced by its lease, so that one that was frozen, or cut
off, writes nothing more once another has taken over, whatever it still believes; and it believes so no longer than the
lease lasts by its own clock.

Leases are by the database's clock. A server whose clock differs from that refuses its clients' signatures, so it makes
way for another whose clock does not; without such a one it leads, since it may be the database whose clock is wrong.

A leader whose line to its members is dead may still reach the database. It makes way if members ask another server.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from fedcore.errors import FedcoreError, LeaseLost
from fedcore.system.concurrency import end
from server_app.runs.persistence import reason_of
from server_app.services import Services
from server_app.storage.store import Lease

log = logging.getLogger("fedcore.server")

LEASE: Final = "leader"
READY: Final = "standby"
"""The lease of a server that stands by and whose clock is right: one that leads with a wrong clock makes way for it."""
REACHABLE: Final = "reachable"
"""The lease of such a one that members ask: one that leads and that no member reaches makes way for it."""
_RENEWALS: Final = 3
"""Renewals in the time of a lease."""
_TRIES: Final = 20
"""Tries to take it in the time of a lease."""

_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_EVERY_ADDRESS: Final = ("0.0.0.0", "::")  # noqa: S104 - nothing is bound to them here
"""Hosts of servers that were not told at which address clients reach them."""
_QUICK_SECONDS: Final = 2.0
"""The longest that reading the database's clock may take."""

Step = Callable[[], Awaitable[None]]


class _MakesWay(FedcoreError):
    """Another server can do better; the text says why."""


def seconds_since_boot() -> float:
    """Seconds that never go back; on Linux they pass while the machine is suspended too, and leases run out."""
    return time.clock_gettime(_CLOCK)


class Leadership:
    """Begins to lead when it may, and ceases when it may no longer.

    begin, cease
        What this server does then.
    clock
        Seconds, also those in which the machine was suspended.

    `leader` is the address of the server that leads while this one stands by, "" if it is not known.
    """

    def __init__(
        self, services: Services, *, begin: Step, cease: Step, clock: Callable[[], float] = seconds_since_boot
    ) -> None:
        self._services = services
        self._begin = begin
        self._cease = cease
        self._holder = services.new_id()
        self._clock = clock
        self._seconds = services.settings.lease_seconds
        self._task: asyncio.Task[None] | None = None
        self._leading = False
        self._until = math.inf
        self._ready_due = 0.0
        self._reach_due = 0.0
        self._waits_until = 0.0
        self.trouble = ""
        self.leader = ""

    @property
    def leads(self) -> bool:
        """Whether this server leads; a process that was stopped for longer than its lease knows it as it wakes."""
        return self._leading and self._now() < self._until

    async def start(self) -> None:
        """Lead at once if no other server can; otherwise as soon as the lease is free."""
        if self._services.settings.shared:
            self._task = asyncio.create_task(self._compete())
        else:
            await self._start_leading()

    async def stop(self) -> None:
        """Suspend everything, and let another server lead at once."""
        if self._task is not None:
            await end(self._task)
            await self._give(self._services.store.give_all(self._holder))  # also one that it was about to take
        elif self._leading:
            self._leading = False
            await self._cease()

    # --- with others ----------------------------------------------------------------------------

    async def _compete(self) -> None:
        while True:
            before = self._now()
            lease = await self._take()
            if lease is not None:
                await self._lead(lease, before + self._seconds)
            await asyncio.sleep(self._seconds / _TRIES)

    async def _take(self) -> Lease | None:
        """The lease; None if another server has it, or the database does not answer."""
        store = self._services.store
        settings = self._services.settings
        take = partial(
            store.take_lease, holder=self._holder, url=settings.address or settings.url, seconds=self._seconds
        )
        try:
            if await self._reason_to_make_way(is_leader=False):
                return None
            lease = await take(LEASE)
            self.leader = await self._address_of_leader() if lease is None else ""
            if lease is None and not self._services.clocks.own_is_off:
                await self._stand_by(take)
        except FedcoreError as error:
            self.leader = ""
            self._note(f"whether another server leads is not known: {reason_of(error)}")
            return None
        self._note("")
        return lease

    async def _address_of_leader(self) -> str:
        """Where clients reach the server that leads now; "" if that is not known."""
        row = await self._services.store.lease(LEASE)
        if row is None or row[1] <= 0 or urlsplit(row[0].url).hostname in _EVERY_ADDRESS:
            return ""
        return row[0].url

    async def _stand_by(self, take: Callable[[str], Awaitable[Lease | None]]) -> None:
        """Tell the leader that this server could lead, and whether members ask it."""
        if self._now() >= self._ready_due:
            await take(READY)
            self._ready_due = self._now() + self._seconds / _RENEWALS
        if self._services.reach.on_standby and self._now() >= self._reach_due:
            await take(REACHABLE)
            self._reach_due = self._now() + self._seconds / _RENEWALS

    async def _reason_to_make_way(self, *, is_leader: bool) -> str:
        """Why another server should lead; empty if none should."""
        services = self._services
        before = services.wall()
        moment, after = await services.store.time(), services.wall()
        if after - before <= _QUICK_SECONDS:  # else nobody knows when that was
            services.clocks.note_database(moment - (before + after) / 2)
        if services.clocks.own_is_off and await self._is_of_another(READY):
            return "its clock is not the database's, and another server stands by whose clock is right"
        if services.reach.holds:
            return ""
        if is_leader:
            waits = await self._is_of_another(REACHABLE)
        else:  # it has just made way, and the other is about to lead
            waits = self._now() < self._waits_until
        return "no client reaches it, and clients ask another server that stands by" if waits else ""

    async def _is_of_another(self, name: str) -> bool:
        row = await self._services.store.lease(name)
        return row is not None and row[1] > 0 and row[0].holder != self._holder

    async def _lead(self, lease: Lease, until: float) -> None:
        """Lead while the lease can be renewed."""
        self._until = until
        self._services.store.fence(lease)
        log.info("this server leads the federation now")
        beginning = asyncio.create_task(self._start_leading())
        owns = True
        try:
            await self._hold(lease, beginning)
        except Exception as error:
            owns = not isinstance(error, LeaseLost | TimeoutError)
            if isinstance(error, _MakesWay):
                self._waits_until = self._now() + self._seconds
            why = "its lease ran out" if isinstance(error, TimeoutError) else reason_of(error)
            log.warning("this server leads no more: %s", why)
        finally:
            self._leading = False
            await end(beginning)
            await self._cease()
            if owns:
                await self._give(self._services.store.give_lease(lease))

    async def _start_leading(self) -> None:
        await self._begin()
        self._leading = True

    async def _hold(self, lease: Lease, beginning: asyncio.Task[None]) -> None:
        """Renew the lease in time.

        Raises LeaseLost, TimeoutError if no renewal succeeded in time, _MakesWay, and what a failed beginning raised.
        """
        while True:
            is_well = not self.trouble and self._services.reach.holds
            await asyncio.sleep(self._seconds / _RENEWALS if is_well else self._seconds / _RENEWALS / 2)
            if beginning.done():
                beginning.result()
            before = self._now()
            try:
                async with asyncio.timeout(self._until - self._now()):
                    if why := await self._reason_to_make_way(is_leader=True):
                        raise _MakesWay(why)
                    await self._services.store.renew_lease(lease, self._seconds)
            except (LeaseLost, _MakesWay):
                raise
            except FedcoreError as error:
                self._note(f"the lease is not renewed: {reason_of(error)}")
                if self._now() >= self._until:
                    raise TimeoutError from error
            else:
                self._note("")
                self._until = before + self._seconds

    async def _give(self, giving: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await giving
        except (FedcoreError, TimeoutError) as error:  # it runs out by itself
            log.warning("the lease is not given back: %s", error)

    def _now(self) -> float:
        return self._clock()  # not the loop's, which stands still while a callback runs

    def _note(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            log.warning("%s", trouble)
        self.trouble = trouble
