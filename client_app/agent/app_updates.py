"""App updates: download the apps that open runs need, and switch to the one that the owner approves.

The agent switches between two exchanges only. If the ranks of the new app do not start, it keeps the old one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NoReturn, Protocol

from client_app.exchange.client import Client
from client_app.http.retry import BRIEF
from client_app.records.offers import Offers
from fedcore.errors import ConfigurationError, FedcoreError, ProtocolViolation
from fedcore.federation.admission.app_agreement import AppAgreement
from fedcore.flower.app import AppBundle, FlowerApp
from fedcore.system.concurrency import in_thread
from fedcore.wire.presence import AppOut

LOOK_SECONDS: Final = 1.0
FETCH_SECONDS: Final = 60.0
"""Between two downloads, so that a server that makes up one app after another cannot fill the line."""


class AppApproved(Exception):
    """The owner has approved another app than the one that runs."""


class Runner(Protocol):
    """Runs the app; `client_app.ranks.group.RankGroup` implements it."""

    async def use(self, app: Path, app_sha256: str) -> None:
        """Stop the running app, and run this copy of another one; raises FedcoreError."""
        ...


@dataclass(slots=True, kw_only=True)
class AppUpdater:
    """What the agent does about other apps than its own."""

    offers: Offers
    runner: Runner | None
    """None if this process cannot switch alone, since the client has several machines."""
    clock: Callable[[], float] = time.monotonic
    """Monotonic seconds."""
    fetch_seconds: float = FETCH_SECONDS
    _offered: tuple[str, ...] = field(default=(), init=False)
    _fetched: float | None = field(default=None, init=False)
    _refused: set[str] = field(default_factory=set, init=False)

    def note_offers(self, offered: str) -> None:
        """Note the hashes of offered apps, from the header of an answer."""
        named = (name.strip() for name in offered.split(",")[:8])
        self._offered = tuple(name for name in named if len(name) == 64 and set(name) <= set("0123456789abcdef"))

    async def fetch_offer(self, client: Client) -> None:
        """Download one offered app that is new, and tell the owner; an error is logged and ends nothing."""
        known = {*await in_thread(self.offers.hashes), *self._refused, client.app_sha256}
        sha256 = next((name for name in self._offered if name not in known), None)
        now = self.clock()
        if sha256 is None or (self._fetched is not None and now - self._fetched < self.fetch_seconds):
            return
        self._fetched = now
        try:
            answer = await client.transport.get(f"/v1/apps/{sha256}", AppOut, retry=BRIEF)
            await in_thread(self.offers.take, sha256, answer.files if answer is not None else {})
        except FedcoreError as error:
            if isinstance(error, ProtocolViolation):
                self._refused.add(sha256)
            client.output.warning("offer", f"the offered app {sha256} could not be downloaded: {error}")
            return
        client.output.warning(
            "offer",
            f"a run needs the app {sha256}, which is not the installed one; none of it runs here yet. To look at it: "
            f"fedcore client offers --kit {client.kit.folder} --diff; to approve it: fedcore client approve {sha256} "
            f"--kit {client.kit.folder}",
            app=sha256,
        )

    async def wait_for_approval(self, client: Client) -> NoReturn:
        """Raise AppApproved as soon as the owner has approved another app than the client's."""
        while True:
            if await in_thread(self._new, client) is not None:
                raise AppApproved
            await asyncio.sleep(LOOK_SECONDS)

    async def switch_app(self, client: Client) -> Client:
        """Switch to the approved app; returns the client with it, ranks ready, or the same client if that fails."""
        if (sha256 := await in_thread(self._new, client)) is None:
            return client
        self._refused.add(sha256)  # unless it succeeds, this is the only try
        pinned = client.kit.policy.app_sha256
        if self.runner is None or (pinned is not None and pinned != sha256):
            why = (
                "policy.toml agrees to another"
                if self.runner
                else "all machines of this client have to be started with it"
            )
            client.output.error("app", f"the approved app {sha256} is not used: {why}")
            return client
        apps = client.state_dir / "apps"
        before = await in_thread(AppBundle.from_copy, apps / client.app_sha256)
        try:
            after = await in_thread(self.offers.bundle, sha256)
            folder = await in_thread(after.install, apps)
            app = FlowerApp.load(folder)
            agreed = AppAgreement.of(app)
            await self.runner.use(folder, sha256)
        except FedcoreError as error:
            client.output.error(
                "app", f"the approved app {sha256} cannot be used: {error}; continuing with the one before"
            )
            await in_thread(self.offers.withdraw_approval)
            await self.runner.use(await in_thread(before.install, apps), client.app_sha256)
            return client
        self._refused.discard(sha256)
        client.results.clear()
        client.pending.discard()
        installed = self.offers.installed()
        await in_thread(self.offers.note_installed, installed.named if installed else client.app_sha256, sha256)
        await in_thread(self.offers.note_name, sha256, app.name)
        client.output.info("app", f"switched to the approved app {sha256}, from {client.app_sha256}")
        return replace(client, app_sha256=sha256, agreed=agreed)

    def _new(self, client: Client) -> str | None:
        try:
            approval = self.offers.approval()
        except ConfigurationError:
            return None
        if approval is None or approval.app in {client.app_sha256, *self._refused}:
            return None
        return approval.app
