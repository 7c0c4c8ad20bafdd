"""Content of the streams about the whole federation, made once for all and at most once a second."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Final

from fedcore.wire.operator import ServerOut
from fedcore.wire.watch import Role
from server_app.services import Services
from server_app.views.listing import list_runs
from server_app.views.members import members_streamed
from server_app.views.redaction import runs_for_viewers

PAUSE_SECONDS: Final = 1.0
RUNS: Final = 50
"""Runs on the first page."""


class OverviewFeed:
    """The first page of runs and the members, as of the last poll."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._polling = asyncio.Lock()
        self._polled_at = -math.inf
        self._rings = -1
        self._runs = dict.fromkeys(Role, "")
        self._clients = ""
        self._compared = ""

    async def poll(self, role: Role) -> dict[str, str]:
        """By the name of its event, the JSON of each of the two for `role`; the same text if nothing has changed."""
        async with self._polling:
            now = asyncio.get_running_loop().time()
            if now - self._polled_at >= PAUSE_SECONDS / 2:
                await self._refresh()
                self._polled_at = now
        return {"runs": self._runs[role], "clients": self._clients}

    async def _refresh(self) -> None:
        rings = self._services.run_bell.rings
        if rings != self._rings:
            page = await list_runs(self._services.store, limit=RUNS, before="", status=None)
            pages = {Role.OPERATOR: page, Role.VIEWER: runs_for_viewers(page)}
            self._runs = {role: browser_json(runs.model_dump_json()) for role, runs in pages.items()}
            self._rings = rings
        members = members_streamed(self._services)
        # When somebody was heard of last changes all the time, and is no news.
        left_out = {"clients": {"__all__": {"last_seen_seconds"}}} if isinstance(members, ServerOut) else None
        compared = members.model_dump_json(exclude=left_out)
        if compared != self._compared:
            self._clients, self._compared = members.model_dump_json(), compared


def browser_json(text: str) -> str:
    """JSON without NaN and infinity, which browsers do not read: null goes in their place."""
    if "NaN" in text or "Infinity" in text:
        return json.dumps(json.loads(text, parse_constant=lambda _: None), separators=(",", ":"), allow_nan=False)
    return text
