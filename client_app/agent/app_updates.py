"""The agent follows its app: it keeps what open runs want, and goes over to what its owner approves, to nothing else.

Between two exchanges only. A new app's ranks that do not start leave the client with the app that it had.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NoReturn, Protocol

from client_app.agent.client import Client
from client_app.agent.offers import Offers
from client_app.http.retry import BRIEF
from fedcore.errors import ConfigurationError, FedcoreError, ProtocolViolation
from fedcore.federation.admission.app_agreement import AppAgreement
from fedcore.flower.app import AppBundle, FlowerApp
from fedcore.system.concurrency import in_thread
from fedcore.wire.control import AppOut

LOOK_SECONDS: Final = 1.0
FETCH_SECONDS: Final = 60.0
"""Between two offers that are fetched: a server that makes up one app after the other is not a way to fill a line."""


class AppApproved(Exception):
    """The owner has approved another app than the one that runs."""


class Runner(Protocol):
    """Who runs the app: `client_app.ranks.group.RankGroup`."""

    async def use(self, app: Path, app_sha256: str) -> None:
        """End what runs, and run this copy of an app instead; raises FedcoreError."""
        ...


@dataclass(slots=True, kw_only=True)
class AppUpdater:
    """What the agent does about other apps than its own.

    runner: None where this process cannot exchange the app alone, since the client has several machines. clock:
    monotonic seconds.
    """

    offers: Offers
    runner: Runner | None
    clock: Callable[[], float] = time.monotonic
    fetch_seconds: float = FETCH_SECONDS
    _offered: tuple[str, ...] = field(default=(), init=False)
    _fetched: float | None = field(default=None, init=False)
    _refused: set[str] = field(default_factory=set, init=False)

    def hear(self, offered: str) -> None:
        """Take note of hashes that the server names, as they stand in its answer."""
        named = (name.strip() for name in offered.split(",")[:8])
        self._offered = tuple(name for name in named if len(name) == 64 and set(name) <= set("0123456789abcdef"))

    async def keep_offer(self, client: Client) -> None:
        """Fetch one app that is offered and not here, and tell the owner; whatever goes wrong, the agent goes on."""
        known = {*await in_thread(self.offers.hashes), *self._refused, client.app_sha256}
        wanted = next((sha256 for sha256 in self._offered if sha256 not in known), None)
        now = self.clock()
        if wanted is None or (self._fetched is not None and now - self._fetched < self.fetch_seconds):
            return
        self._fetched = now
        try:
            found = await client.transport.get(f"/v1/apps/{wanted}", AppOut, retry=BRIEF)
            await in_thread(self.offers.take, wanted, found.files if found is not None else {})
        except FedcoreError as error:
            if isinstance(error, ProtocolViolation):
                self._refused.add(wanted)
            client.output.warning("offer", f"the app {wanted} is offered and could not be fetched: {error}")
            return
        client.output.warning(
            "offer",
            f"a run wants the app {wanted}, which is not the installed one; nothing of it runs here. Look at it: "
            f"fedcore client offers --kit {client.kit.folder} --diff; agree to it: fedcore client approve {wanted} "
            f"--kit {client.kit.folder}",
            app=wanted,
        )

    async def approved(self, client: Client) -> NoReturn:
        """Raise Approved as soon as the owner has approved another app than the client's."""
        while True:
            if await in_thread(self._new, client) is not None:
                raise AppApproved
            await asyncio.sleep(LOOK_SECONDS)

    async def take_up(self, client: Client) -> Client:
        """The client with the app that its owner approved, whose ranks are ready; the same one where that fails."""
        if (sha256 := await in_thread(self._new, client)) is None:
            return client
        self._refused.add(sha256)  # unless it goes well, this is the only try
        pinned = client.kit.policy.app_sha256
        if self.runner is None or (pinned is not None and pinned != sha256):
            why = (
                "policy.toml agrees to another"
                if self.runner
                else "its machines have to be started with it, all of them"
            )
            client.output.error("app", f"the approved app {sha256} is not used: {why}")
            return client
        apps = client.state_dir / "apps"
        before = await in_thread(AppBundle.from_copy, apps / client.app_sha256)
        try:
            after = await in_thread(self.offers.bundle, sha256)
            folder = await in_thread(after.install, apps)
            agreed = AppAgreement.of(FlowerApp.load(folder))
            await self.runner.use(folder, sha256)
        except FedcoreError as error:
            client.output.error(
                "app", f"the approved app {sha256} cannot be used: {error}; going on with the one before"
            )
            await in_thread(self.offers.withdraw_approval)
            await self.runner.use(await in_thread(before.install, apps), client.app_sha256)
            return client
        self._refused.discard(sha256)
        client.results.clear()
        client.pending.discard()
        installed = self.offers.installed()
        await in_thread(self.offers.note_installed, installed.named if installed else client.app_sha256, sha256)
        client.output.info("app", f"from here on the approved app {sha256}, no more {client.app_sha256}")
        return replace(client, app_sha256=sha256, agreed=agreed)

    def _new(self, client: Client) -> str | None:
        try:
            approval = self.offers.approval()
        except ConfigurationError:
            return None
        if approval is None or approval.app in {client.app_sha256, *self._refused}:
            return None
        return approval.app
