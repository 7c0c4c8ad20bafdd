"""How far other clocks are from that of this server: the database's, and those of the clients, which sign the time.

A client whose clock is off is refused, and looks as if it were away; a server whose clock is off refuses everybody. So
both are named.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from fedcore.wire.signing import CLOCK_SKEW_S, clock_difference

log = logging.getLogger("fedcore.server")

MOST_SECONDS: Final = float(CLOCK_SKEW_S)
"""A clock that is off by more is wrong: requests that are signed by a clock that is so far ahead are refused."""
LATE_SECONDS: Final = 30.0
"""All that a client signs has to come late for so long before its clock counts as slow.

One request may have waited, for a proxy that tried another server first, or for this server, which was frozen.
"""
_FEWEST: Final = 2
"""Clients that have to agree that this server's clock is the wrong one."""


def is_off(seconds: float | None) -> bool:
    """Whether a clock is wrong; not if nothing is known of it."""
    return seconds is not None and abs(seconds) > MOST_SECONDS


@dataclass(slots=True)
class Clocks:
    """What is known of other clocks: seconds by which each is ahead of this server's.

    names: of clients, by their numbers.
    clock: monotonic seconds.
    database: None if that has no clock of its own, or none was read.
    clients: of those that have signed a request.
    """

    names: Callable[[], Mapping[int, str]]
    clock: Callable[[], float]
    database: float | None = None
    clients: dict[int, float] = field(default_factory=dict)
    _late_since: dict[int, float] = field(default_factory=dict)

    def note_client(self, client: int, seconds: float) -> None:
        """Note the time that a client signed; a change for the worse or the better is logged."""
        if self._may_have_waited(client, seconds):
            return
        before, self.clients[client] = self.clients.get(client), seconds
        if is_off(seconds) == is_off(before):
            return
        name = self.names().get(client, f"client {client}")
        if is_off(seconds):
            log.warning(
                "the clock of %s is %s this server's: one of the two has to be set", name, clock_difference(seconds)
            )
        else:
            log.info("the clock of %s is right again", name)

    def _may_have_waited(self, client: int, seconds: float) -> bool:
        """Whether a request may be late though the client's clock is right."""
        if seconds >= -MOST_SECONDS:
            self._late_since.pop(client, None)
            return False
        now = self.clock()
        return now - self._late_since.setdefault(client, now) < LATE_SECONDS

    def note_database(self, seconds: float) -> None:
        """Note the time that the database has; a change for the worse or the better is logged."""
        before, self.database = self.database, seconds
        if is_off(seconds) and not is_off(before):
            log.warning("%s", self._against_database())
        elif is_off(before) and not is_off(seconds):
            log.info("this server and its database have the same time again")

    @property
    def own_is_off(self) -> bool:
        """Whether the database has another time than this server."""
        return is_off(self.database)

    @property
    def warning(self) -> str:
        """What the server's owner should look after; empty if nothing."""
        if is_off(self.database):
            return self._against_database()
        off = [seconds for seconds in self.clients.values() if is_off(seconds)]
        if len(off) < _FEWEST or 2 * len(off) <= len(self.clients):
            return ""
        middle = statistics.median(off)
        return (
            f"the clocks of {len(off)} of {len(self.clients)} clients are off, by the median "
            f"{clock_difference(middle)} this server's: look whether its own clock is right"
        )

    def _against_database(self) -> str:
        assert self.database is not None  # noqa: S101 - it is off
        return f"the clock of this server is {clock_difference(-self.database)} the database's: set it"
