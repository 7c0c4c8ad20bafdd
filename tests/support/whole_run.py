"""A whole run over servers that die: its ServerApp, its members and its operator go on with whichever process lives.

Client i has 4**(i - 1) examples, so the digits of a sum say whose update is in it, and how often.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np

from fedcore.errors import StorageUnavailable
from fedcore.federation import ClientKit, FederationFolder
from fedcore.flower.app import AppBundle
from fedcore.state import ModelState
from fedcore.wire.base import Message
from fedcore.wire.events import RunOut
from fedcore.wire.operator import RunsOut
from server_app.application import Application
from server_app.runs.app.messages import Replies, Start
from server_app.services import Services

from .dying import Dying, DyingDatabase, DyingTransport, Life, Witness
from .events import told
from .members import Failure, Local, Member
from .serverside import TINY, ScriptedApp, Site, site

T = TypeVar("T")
ROUNDS = 2
CLIENTS = (1, 2, 3, 4)
SECONDS = 500.0
"""The longest that a run may take; it takes one or two where nothing is wrong."""
_PASSES = ("busy", "storage-unavailable", "not-leading")
"""What a request is sent again for."""


class Lost(AssertionError):
    """Something that was acknowledged is gone; whoever sent it never sends it again."""


class MomentumApp(ScriptedApp):
    """A ServerApp whose model is made of all replies so far, in their order."""

    def __init__(self, folder: Path, on_line: Callable[[str], None]) -> None:
        super().__init__(folder, on_line)
        self._script: asyncio.Task[None] | None = None

    async def send(self, message: Message) -> None:
        await super().send(message)
        if isinstance(message, Start):
            self._script = asyncio.create_task(self._main())

    async def stop(self) -> None:
        await super().stop()
        if self._script is not None:
            self._script.cancel()

    async def _main(self) -> None:
        values = np.random.default_rng(1).normal(size=(40, 7)).astype(np.float32)
        model, speed = ModelState.from_arrays({"weight": values}), np.zeros_like(values)
        await self.nodes()
        for number in range(1, ROUNDS + 1):
            trained = await self._ask(model, "train")
            mean = trained.replies[0].model()
            assert mean is not None
            speed = np.float32(0.9) * speed + (mean["weight"] - model["weight"])
            model = ModelState.from_arrays({"weight": model["weight"] + speed})
            found = await self._ask(model, "evaluate")
            self.on_line(f"round {number}: {trained.replies[0].examples} {dict(found.replies[0].metrics)}")
        self.finish(model)

    async def _ask(self, model: ModelState, message_type: str) -> Replies:
        answer = await self.exchange(model, CLIENTS, message_type=message_type)
        assert isinstance(answer, Replies), answer
        return answer


class Enduring(Member):
    """A member that sends again what nobody answered; what was acknowledged is noted."""

    def __init__(self, play: WholeRun, kit: ClientKit, folder: Path) -> None:
        super().__init__(kit, httpx.AsyncClient(), folder)
        self._play = play
        self.local = Local(by=kit.client_id / 8, examples=4 ** (kit.client_id - 1), metrics={"loss": kit.client_id})
        self._met: Site | None = None

    async def ask(self, method: str, path: str, body: Message | bytes = b"", **options: Any) -> httpx.Response:
        async def attempt(here: Site) -> httpx.Response:
            self.http = here.http
            if self._met is not here and path != "/v1/join":
                await self.join(AppBundle.from_folder(TINY).sha256)
                self._met = here
            return await super(Enduring, self).ask(method, path, body, **options)

        answer = await self._play.endure(attempt)
        if method == "PUT" and "/update/" not in path:
            raw = body if isinstance(body, bytes) else body.model_dump_json().encode()
            self._play.acknowledged[self._sent_as(path)] = hashlib.sha256(raw).digest()
        return answer

    def _sent_as(self, path: str) -> tuple[int, str, int]:
        return int(path.split("/")[5]), path.split("/")[6], self.id

    async def upload(self) -> None:
        body, manifest = self.vector()
        while True:
            await self.send(body)
            try:
                return await self.put("manifest", manifest)
            except Failure as refused:  # another process has not got the parts of the last one
                if refused.problem.kind != "parts-missing":
                    raise

    async def take_part(self) -> None:
        """In all exchanges."""
        while True:
            await self.enter()
            for step in (self.advertise, self.share, self.receive, self.upload, self.sign, self.unmask):
                try:
                    await step()
                except Failure as refused:
                    # The last message was the last thing kept, and nobody was left to say so.
                    if refused.problem.kind != "round-failed" or step != self.unmask:
                        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run came to. tensors: of its model, as they are in its file."""

    run: RunOut
    tensors: bytes
    rounds: int

    def differences(self, calm: Outcome) -> list[str]:
        """In what this run went another way than an undisturbed one."""
        done = [(item["exchange"], item["examples"], item["survivors"]) for item in self._of("exchange-done")]
        everybody = sum(4 ** (client - 1) for client in CLIENTS)
        wanted = [
            (number, everybody, [f"client-{client}" for client in CLIENTS]) for number in range(1, 2 * ROUNDS + 1)
        ]
        found = {
            f"it is {self.run.status}: {self.run.reason}": self.run.status == "finished",
            f"its sums are {done}": done == wanted,
            f"{self.rounds} rounds were counted": self.rounds == ROUNDS,
            "its model has other bits": self.tensors == calm.tensors,
            "its app printed other lines": self._of("log") == calm._of("log"),
            "an event is missing, or comes twice": [item.seq for item in self.run.events]
            == list(range(1, len(self.run.events) + 1)),
            "its events are others": self._unlike_resumed() == calm._unlike_resumed(),
        }
        return [what for what, is_so in found.items() if not is_so]

    def _of(self, kind: str) -> list[dict[str, Any]]:
        return [told(item.event) for item in self.run.events if item.event.kind == kind]

    def _unlike_resumed(self) -> list[str]:
        """The kinds of all events but those of a new start, and of progress, which leaves out what comes at once."""
        kinds = [item.event.kind for item in self.run.events]
        return [kind for kind in kinds if kind not in ("resumed", "clients", "stage")]


@dataclass
class WholeRun:
    """Processes that follow each other over one folder and database.

    deaths: after how many writes each of the first ones dies. database: the URL of a
    PostgreSQL; without, SQLite in the folder.
    """

    federation: FederationFolder
    folder: Path
    deaths: Sequence[int]
    database: str = ""
    witness: Witness = field(default_factory=Witness)
    acknowledged: dict[tuple[int, str, int], bytes] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)
    _here: Site | None = None

    async def play(self, settings: dict[str, Any]) -> Outcome:
        """The run from its submission to its end."""
        async with asyncio.timeout(SECONDS):
            kits = [ClientKit.load(path) for path in self.federation.clients]
            members = [Enduring(self, kit, self.folder) for kit in kits]
            ending = asyncio.create_task(self._operate(settings))
            work = [asyncio.create_task(self._serve()), *(asyncio.create_task(one.take_part()) for one in members)]
            try:
                await asyncio.wait({ending, *work}, return_when=asyncio.FIRST_COMPLETED)
                for one in work:
                    if one.done():
                        one.result()
                return await ending
            finally:
                for task in (ending, *work):
                    task.cancel()
                await asyncio.gather(ending, *work, return_exceptions=True)

    async def endure(self, ask: Callable[[Site], Awaitable[T]]) -> T:
        """The answer of whichever process gives one."""
        while True:
            here = self._here
            if here is not None and not (life := self.lives[-1]).dead.is_set():
                try:
                    return await ask(here)
                except httpx.TransportError:
                    pass
                except RuntimeError:  # its client is closed a moment after it died
                    if not here.http.is_closed:
                        raise
                except StorageUnavailable:  # so is its database, which the harness reads past the client
                    if not life.dead.is_set():
                        raise
                except Failure as refused:
                    if refused.problem.kind not in _PASSES:
                        raise
            await asyncio.sleep(0.002)

    # --- the processes --------------------------------------------------------------------------

    async def _serve(self) -> None:
        for writes in (*self.deaths, None):
            life = Life(writes, puts=True)
            self.lives.append(life)
            living = asyncio.create_task(self._live(life))
            try:
                await asyncio.wait({living})
                if not life.dead.is_set():
                    living.result()
            finally:
                life.dead.set()  # not cancelled: it may be closing its database just now
                await asyncio.gather(living, return_exceptions=True)

    async def _live(self, life: Life) -> None:
        applications: list[Application] = []

        def look() -> None:
            for application in applications:
                self.witness.look(application.queue.exchange)

        def mortal(services: Services) -> Services:
            services.store.database = DyingDatabase(services.store.database, life, look)
            objects = Dying(services.objects, life, writes=("put", "remove"), counted=("put",), look=look)
            return replace(services, objects=objects)

        def reached(application: Application) -> httpx.AsyncBaseTransport:
            applications.append(application)
            return DyingTransport(httpx.ASGITransport(app=application.asgi), life)

        async with site(
            self.federation,
            self.folder,
            start_app=_start,
            transport=reached,
            change=mortal,
            database=self.database,
        ) as here:
            try:
                await self._compare(here)
                self._here = here
                await life.dead.wait()
            finally:
                self._here = None
                await life.settle()

    async def _compare(self, here: Site) -> None:
        """Everything of an open exchange that was ever acknowledged must be what the disk has."""
        store = here.services.store
        for run in await store.list_runs(2):
            for row in await store.exchanges_of(run.run):
                if row.result is None:
                    receipts = (await store.history(run.run, row.exchange)).receipts
                    kept = {(row.exchange, one.step, one.client): bytes(one.digest) for one in receipts}
                    told = {key: digest for key, digest in self.acknowledged.items() if key[0] == row.exchange}
                    if lost := [key for key, digest in told.items() if kept.get(key) != digest]:
                        raise Lost(f"acknowledged, and not on the disk: {lost}")

    # --- the operator ---------------------------------------------------------------------------

    async def _operate(self, settings: dict[str, Any]) -> Outcome:
        run = await self.endure(lambda here: _submitted(here, settings))
        while not (shown := await self.endure(lambda here: here.show(run))).status.final:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return await self.endure(lambda here: self._outcome(here, shown))

    async def _outcome(self, here: Site, ended: RunOut) -> Outcome:
        model = b""
        with suppress(Failure):
            model = (await here.operator("GET", f"/v1/runs/{ended.run}/model")).content
        await self._compare(here)
        while await here.services.store.steps(ended.run):  # noqa: ASYNC110 - a finished run needs no journal
            await asyncio.sleep(0.01)
        return Outcome(
            run=ended,
            tensors=model[8 + int.from_bytes(model[:8], "little") :],  # the head has the run's id and the time
            rounds=ended.rounds,
        )


async def _submitted(here: Site, settings: dict[str, Any]) -> str:
    """The run, which an earlier process may have taken before it could say so."""
    there = RunsOut.model_validate_json((await here.operator("GET", "/v1/runs")).content).runs
    return there[0].run if there else (await here.submit(settings)).run


async def _start(work: Path, on_line: Callable[[str], None]) -> MomentumApp:
    return MomentumApp(work, on_line)
