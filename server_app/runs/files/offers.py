"""The apps of open runs, for members whose owners installed another: they may look at them, and approve them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from fedcore.wire.presence import AppOut
from fedcore.wire.problems import ProblemKind
from server_app.rejection import Rejection
from server_app.runs.files.run_files import RunKeys, load_bundle
from server_app.services import Services

MOST_NAMED: Final = 4
"""Apps that are named to a client at once."""
LOOK_SECONDS: Final = 2.0
"""How long it is not looked again which runs are open."""


class AppOffers:
    """What is offered to whom. The files of the last app that was asked for are kept as they are sent."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._open: Mapping[str, str] = {}
        self._looked = -LOOK_SECONDS
        self._latest: tuple[str, bytes] = ("", b"")
        self._reading = asyncio.Lock()

    async def for_client(self, client: int) -> tuple[str, ...]:
        """Hashes of the apps of open runs; none for a client that has one of them."""
        apps = await self._apps()
        return () if self._services.presence.installed.get(client) in apps else tuple(apps)[:MOST_NAMED]

    async def content(self, sha256: str) -> bytes:
        """An app of an open run as JSON (`AppOut`); Rejection if no open run has it."""
        run = (await self._apps()).get(sha256)
        if run is None:
            raise Rejection(ProblemKind.NOT_FOUND, "no open run has this app")
        async with self._reading:
            if self._latest[0] != sha256:
                self._latest = (sha256, await self._read(run))
            return self._latest[1]

    async def _apps(self) -> Mapping[str, str]:
        now = asyncio.get_running_loop().time()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._open = await self._services.store.open_apps()
        return self._open

    async def _read(self, run: str) -> bytes:
        bundle = await load_bundle(self._services.objects, RunKeys(run).app)
        if bundle is None:  # forgotten a moment ago
            raise Rejection(ProblemKind.NOT_FOUND, "no open run has this app")
        return AppOut(files=dict(bundle.files)).model_dump_json().encode()
