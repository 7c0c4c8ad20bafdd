"""Log lines about clients that connect and disconnect, several in one line."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

from fedcore.wire.events import name_some
from server_app.members.presence import Presence

log = logging.getLogger("fedcore.server")

PAUSE_SECONDS: Final = 5.0
"""Between two polls; a client that is back by the next one counts as never gone."""
ABSENT_SECONDS: Final = 15.0
"""How long a member is silent that is said to have gone, if its connection does not say so sooner."""


class PresenceLog:
    """Compares the clients that are online with those at the last poll.

    presence
        Which clients are online.
    names
        Client id -> name.
    tell
        Gets the lines.
    """

    def __init__(
        self, presence: Presence, names: Callable[[], Mapping[int, str]], tell: Callable[[str], None] = log.info
    ) -> None:
        self._presence = presence
        self._names = names
        self._tell = tell
        self._there: frozenset[int] = frozenset()

    def poll(self) -> None:
        """Log what has changed."""
        there, before = self._presence.online(ABSENT_SECONDS), self._there
        self._there = there
        for what, clients in (("connected", there - before), ("gone", before - there)):
            if clients:
                names = self._names()
                named = name_some([names.get(client, str(client)) for client in sorted(clients)])
                self._tell(f"{what}: {len(clients)} ({named}); {len(there)} members are there")

    async def watch(self) -> NoReturn:
        """Poll for ever."""
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            self.poll()
