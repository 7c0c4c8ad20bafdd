"""A server in this process, and members that speak the protocol to it with real sessions.

`Member` is a client without training: it signs requests, masks and uploads what a test gives it.
`ScriptedApp` stands where the ServerApp's process would: the test asks for exchanges itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedcore.codec import encode
from fedcore.errors import WorkerDied
from fedcore.federation import ClientKit, Federation, OperatorKit, ServerKit
from fedcore.flower.bundle import AppBundle
from fedcore.http_signing import sign_headers
from fedcore.parts import PART_BYTES, update_digest
from fedcore.round import encoding_of, round_parameters
from fedcore.secagg import (
    AdvertisedCohort,
    Advertisement,
    ClientSession,
    ShareDelivery,
    SignatureSet,
    Survivors,
)
from fedcore.state import ModelState
from fedcore.wire import (
    AdvertisementIn,
    CohortOut,
    ConsistencyIn,
    DeliveryOut,
    JoinIn,
    KeySharesIn,
    ManifestIn,
    Message,
    MetricSlots,
    Problem,
    RunIn,
    RunOut,
    SignaturesOut,
    SurvivorsOut,
    Task,
    UnmaskIn,
    WithdrawalReason,
    WithdrawIn,
    join_entries,
    unpack_members,
)
from server_app.api import Application, make_application
from server_app.appmessages import (
    Broken,
    BudgetReached,
    ExchangeAsked,
    ExchangeFailed,
    Finished,
    FromApp,
    NodesAsked,
    Replies,
    Start,
)
from server_app.blobs import Spool
from server_app.presence import Presence
from server_app.services import Services
from server_app.settings import ServerSettings
from server_app.store import Store

T = TypeVar("T")
TINY = Path(__file__).parents[1] / "apps" / "tiny"
SETTINGS = {
    "min-clients": 3,
    "join-seconds": 2.0,
    "train-seconds": 5.0,
    "step-seconds": 5.0,
    "liveness-seconds": 30.0,
    "w-max": 64,
    "field-bits": 16,
}
"""Settings of a run. Its seconds are those of the site's clock: they pass only where a test lets them."""
POLL_SECONDS = 30.0
"""The longest that the server lets a request wait."""
POLLS = 3
"""How often a member asks for what should come at once; a machine may be busy."""


class Clock:
    """Seconds that stand still, so that nobody is late or silent because the machine is busy."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    async def run_until(self, work: asyncio.Future[T]) -> T:
        """The result of `work`, for which time has to pass."""
        while not work.done():
            self.advance(0.1)
            await asyncio.sleep(0.01)
        return work.result()


class Failure(AssertionError):
    """A request that the server refused, with its problem document."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.problem = Problem.model_validate_json(response.content)
        super().__init__(f"{response.status_code} {self.problem.kind}: {self.problem.detail}")


class ScriptedApp:
    """An AppConnection whose ServerApp is the test."""

    def __init__(self, folder: Path, on_line: Callable[[str], None]) -> None:
        self.folder = folder
        self.on_line = on_line
        self.start: Start | None = None
        self.stopped = False
        self.crashed = asyncio.Event()
        self._asked: asyncio.Queue[FromApp] = asyncio.Queue()
        self._answers: asyncio.Queue[Message] = asyncio.Queue()
        self._numbers = itertools.count(1)

    async def send(self, message: Message) -> None:
        if isinstance(message, Start):
            self.start = message
        else:
            self._answers.put_nowait(message)

    async def receive(self) -> FromApp:
        asked = asyncio.ensure_future(self._asked.get())
        crashed = asyncio.ensure_future(self.crashed.wait())
        await asyncio.wait({asked, crashed}, return_when=asyncio.FIRST_COMPLETED)
        crashed.cancel()
        if not asked.done():
            asked.cancel()
            raise WorkerDied("the scripted app crashed")
        return asked.result()

    async def ended(self) -> None:
        await self.crashed.wait()

    async def stop(self) -> None:
        self.stopped = True

    async def nodes(self) -> Message:
        self._asked.put_nowait(NodesAsked())
        return await self._answers.get()

    async def exchange(
        self,
        model: ModelState | None,
        nodes: Sequence[int],
        *,
        message_type: str = "train",
        configs: Mapping[str, Any] | None = None,
    ) -> Replies | ExchangeFailed | BudgetReached:
        """One `send_and_receive` of the ServerApp."""
        number = next(self._numbers)
        path = self.folder / f"model-{number}.safetensors"
        if model is not None:
            model.save(path)
        self._asked.put_nowait(
            ExchangeAsked(
                message_type=message_type,
                nodes=list(nodes),
                server_round=number,
                model=str(path) if model is not None else None,
                arrays_key="arrays",
                configs=dict(configs or {"config": {"server-round": number}}),
                weight_key="num-examples",
                timeout=None,
            )
        )
        answer = await self._answers.get()
        assert isinstance(answer, Replies | ExchangeFailed | BudgetReached)
        return answer

    def finish(self, model: ModelState | None = None) -> None:
        path = self.folder / "final.safetensors"
        if model is not None:
            model.save(path)
        self._asked.put_nowait(Finished(model=str(path) if model is not None else None))

    def fail(self, reason: str) -> None:
        self._asked.put_nowait(Broken(reason=reason))


@dataclass
class Local:
    """What a member contributes: `by` is added to every float, integers grow by one."""

    by: float = 1.0
    examples: int = 10
    metrics: dict[str, Any] = field(default_factory=lambda: {"loss": 0.5})

    def train(self, model: ModelState) -> ModelState:
        arrays = {
            name: value + (np.float32(self.by) if value.dtype.kind == "f" else 1) for name, value in model.items()
        }
        return ModelState.from_arrays({name: np.asarray(value, model[name].dtype) for name, value in arrays.items()})


class Member:
    """One client of the roster, over any httpx client; each step of an exchange is a method."""

    def __init__(self, kit: ClientKit, http: httpx.AsyncClient, folder: Path) -> None:
        self.kit = kit
        self.id = kit.client_id
        self.http = http
        self.local = Local()
        self.task: Task | None = None
        self.session: ClientSession | None = None
        self.sent: dict[str, bytes] = {}
        self._folder = folder
        self._model: ModelState | None = None

    # --- requests -------------------------------------------------------------------------------

    def signed(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        key: Ed25519PrivateKey | None = None,
        key_id: str | None = None,
        now: float | None = None,
        digest: bytes | None = None,
    ) -> dict[str, str]:
        return sign_headers(
            method,
            path,
            digest or hashlib.sha256(body).digest(),
            key_id=key_id or f"client-{self.id}",
            key=key or self.kit.identity,
            now=int(now if now is not None else time.time()),
            nonce=os.urandom(12).hex(),
        )

    async def ask(self, method: str, path: str, body: Message | bytes = b"", **options: Any) -> httpx.Response:
        """A signed request; Failure where the answer is a problem."""
        raw = body if isinstance(body, bytes) else body.model_dump_json().encode()
        kind = "application/octet-stream" if "/update/parts/" in path else "application/json"
        headers = {"Content-Type": kind, **self.signed(method, path, raw, **options)}
        response = await self.http.request(method, path, content=raw, headers=headers)
        if response.status_code >= 400:
            raise Failure(response)
        return response

    async def put(self, step: str, body: Message | bytes) -> None:
        """A step of the exchange; what was sent is kept for repetition."""
        self.sent[step] = body if isinstance(body, bytes) else body.model_dump_json().encode()
        await self.ask("PUT", self.at(step), body)

    async def get(self, step: str) -> bytes:
        return (await self._poll(self.at(step))).content

    async def _poll(self, path: str) -> httpx.Response:
        """What `path` answers once it has something to say."""
        for _ in range(POLLS):
            response = await self.ask("GET", f"{path}{'&' if '?' in path else '?'}wait={POLL_SECONDS:g}")
            if response.status_code == 200:
                return response
        raise AssertionError(f"nothing came from {path}")

    def at(self, step: str) -> str:
        assert self.task is not None
        return f"/v1/runs/{self.task.run}/exchanges/{self.task.exchange}/{step}"

    async def join(self, app_sha256: str) -> None:
        await self.ask("POST", "/v1/join", JoinIn(app_sha256=app_sha256, version="test"))

    # --- an exchange ----------------------------------------------------------------------------

    async def enter(self) -> Task:
        """Take the next task, fetch its model, make a session."""
        last = self.task
        known = f"?run={last.run}&after={last.exchange}" if last else ""
        task = self.task = Task.model_validate_json((await self._poll(f"/v1/task{known}")).content)
        if task.model is not None:
            self._model = await self._fetch(task)
        if task.aggregation == "secure":
            self.session = ClientSession(
                parameters=round_parameters(
                    task,
                    federation=self.kit.federation,
                    roster_hash=self.kit.roster.hash(),
                    model_hash=bytes.fromhex(task.model.sha256) if task.model else None,
                ),
                client_id=self.id,
                identity=self.kit.identity,
                roster=self.kit.roster.keys,
                min_cohort=2,
                min_threshold=2,
            )
        return task

    async def _fetch(self, task: Task) -> ModelState:
        assert task.model is not None
        response = await self.ask("GET", self.at("model"))
        assert hashlib.sha256(response.content).hexdigest() == task.model.sha256
        assert response.headers["etag"] == f'"{task.model.sha256}"'
        path = self._folder / f"{self.id}-{task.exchange}.safetensors"
        path.write_bytes(response.content)
        return ModelState.open(path)

    async def advertise(self) -> None:
        made = self._session.advertise()
        body = AdvertisementIn(c_public=made.c_public, s_public=made.s_public, signature=made.signature)
        await self.put("advertisement", body)

    async def share(self) -> None:
        answer = CohortOut.model_validate_json(await self.get("cohort"))
        members = tuple(Advertisement(**member.model_dump()) for member in answer.members)
        made = self._session.share_keys(AdvertisedCohort(self.clients(answer.advertised), members, tuple(answer.proof)))
        body = KeySharesIn(
            commitment=made.commitment, shares=join_entries(made.shares), pair_secrets=join_entries(made.pair_secrets)
        )
        await self.put("key-shares", body)

    async def receive(self) -> None:
        answer = DeliveryOut.model_validate_json(await self.get("key-shares"))
        delivery = ShareDelivery(self.clients(answer.sharers), answer.shares, answer.pair_secrets)
        self._session.receive_shares(delivery)

    def clients(self, packed: bytes) -> tuple[int, ...]:
        assert self.task is not None
        return unpack_members(packed, self.task.cohort)

    def vector(self) -> tuple[bytes, ManifestIn]:
        """The masked vector and its manifest; a session masks once."""
        assert self.task is not None
        encoding = encoding_of(self.task)
        trains = encoding.layout is not None and self._model is not None
        encoded = encode(
            encoding,
            base=self._model if trains else None,
            local=self.local.train(self._model) if trains and self._model else None,
            examples=self.local.examples,
            metrics=self.local.metrics,
            randomness=os.urandom,
        )
        self._session.mask(encoded.words)
        body = encoded.words.tobytes()
        slots = [MetricSlots(name=name, length=n or 0) for name, n in encoded.metric_names]
        return body, ManifestIn(digest=digest_of(body), size=len(body), metrics=slots)

    async def upload(self) -> None:
        body, manifest = self.vector()
        await self.send(body)
        await self.put("manifest", manifest)

    async def send(self, body: bytes) -> None:
        """An update, part by part."""
        for index, part in enumerate(parts_of(body)):
            await self.put(f"update/parts/{index}", part)

    async def sign(self) -> None:
        answer = SurvivorsOut.model_validate_json(await self.get("survivors"))
        made = self._session.sign_survivors(Survivors(self.clients(answer.survivors)))
        await self.put("consistency", ConsistencyIn(signature=made.signature))

    async def unmask(self) -> None:
        answer = SignaturesOut.model_validate_json(await self.get("consistency"))
        made = self._session.unmask(SignatureSet(answer.signatures))
        body = UnmaskIn(self_shares=join_entries(made.self_shares), key_shares=join_entries(made.key_shares))
        await self.put("unmask", body)

    async def secure(self, *, until: str = "") -> None:
        """All steps of a secure exchange; leaves without a word before the step `until`."""
        steps: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = (
            self.advertise, self.share, self.receive, self.upload, self.sign, self.unmask,
        )  # fmt: skip
        for step in steps:
            if step.__name__ == until:
                return
            await step()

    def plain_manifest(self) -> tuple[bytes, ManifestIn]:
        """The update in clear and its manifest."""
        assert self.task is not None
        body = b""
        if self.task.trains and self._model is not None:
            path = self._folder / f"{self.id}-local.safetensors"
            self.local.train(self._model).save(path)
            body = path.read_bytes()
        slots = [
            MetricSlots(name=name, length=len(value) if isinstance(value, list) else 0)
            for name, value in sorted(self.local.metrics.items())
        ]
        return body, ManifestIn(
            digest=digest_of(body),
            size=len(body),
            metrics=slots,
            examples=self.local.examples,
            values=self.local.metrics,
        )

    async def plain(self) -> None:
        """A whole plain exchange."""
        body, manifest = self.plain_manifest()
        await self.send(body)
        await self.put("manifest", manifest)

    async def withdraw(self, reason: WithdrawalReason = WithdrawalReason.STOPPED) -> None:
        await self.ask("POST", self.at("withdrawal"), WithdrawIn(reason=reason))

    @property
    def _session(self) -> ClientSession:
        assert self.session is not None
        return self.session


@dataclass
class Site:
    """A server and everybody around it."""

    application: Application
    services: Services
    http: httpx.AsyncClient
    members: dict[int, Member]
    operator_kit: OperatorKit
    apps: list[ScriptedApp]
    clock: Clock

    async def operator(self, method: str, path: str, body: Message | None = None) -> httpx.Response:
        """A request with the operator's token; Failure where the answer is a problem."""
        headers = {
            "Authorization": f"Bearer {self.operator_kit.token}",
            "Content-Type": "application/json",
        }
        content = body.model_dump_json() if body else None
        response = await self.http.request(method, path, content=content, headers=headers)
        if response.status_code >= 400:
            raise Failure(response)
        return response

    async def submit(
        self, settings: Mapping[str, Any] | None = None, config: Mapping[str, Any] | None = None
    ) -> RunOut:
        """Submit the tiny app; everybody has joined with it."""
        bundle = AppBundle.from_folder(TINY)
        for member in self.members.values():
            await member.join(bundle.sha256)
        body = RunIn(
            app_sha256=bundle.sha256,
            files=dict(bundle.files),
            run_config=dict(config or {}),
            settings={**SETTINGS, **(settings or {})},
        )
        return RunOut.model_validate_json((await self.operator("POST", "/v1/runs", body)).content)

    async def begin(self, settings: Mapping[str, Any] | None = None) -> tuple[str, ScriptedApp]:
        """Submit a run whose ServerApp is the test."""
        count = len(self.apps)
        run = (await self.submit(settings)).run
        await until(lambda: len(self.apps) > count and self.apps[-1].start is not None)
        return run, self.apps[-1]

    async def follow(self, run: str) -> RunOut:
        """The run once it has ended, with all its events."""
        while True:
            text = (await self.operator("GET", f"/v1/runs/{run}?wait=5")).content
            answer = RunOut.model_validate_json(text)
            if answer.status.final:
                return answer
            await asyncio.sleep(0.01)

    async def finish(self, run: str, app: ScriptedApp, model: ModelState | None = None) -> RunOut:
        app.finish(model)
        return await self.follow(run)

    async def enter_all(self) -> list[Member]:
        """Everybody takes the open task."""
        members = list(self.members.values())
        await asyncio.gather(*(member.enter() for member in members))
        return members


@asynccontextmanager
async def site(
    federation: Federation,
    folder: Path,
    *,
    start_app: Callable[..., Any] | None = None,
    transport: Callable[[Application], httpx.AsyncBaseTransport] | None = None,
    **limits: Any,
) -> AsyncIterator[Site]:
    """A server over `folder` without a socket; `limits` change its ServerSettings.

    Its clock stands still. Where enough clients are there, it does not wait for more.
    """
    kit = ServerKit.load(federation.server)
    clock = Clock()
    settings = ServerSettings(data_dir=folder / "data", **{"reserve_bytes": 0, "grace_seconds": 0.0, **limits})
    settings.spool_dir.mkdir(parents=True, exist_ok=True)
    store = await Store.open(settings.database)
    numbers = itertools.count(1)
    services = Services(
        settings=settings,
        roster=kit.roster,
        store=store,
        spool=Spool(folder=settings.spool_dir, reserve_bytes=settings.reserve_bytes),
        presence=Presence(clock=clock),
        clock=clock,
        wall=time.time,
        new_id=lambda: f"run-{next(numbers)}-{os.urandom(3).hex()}",
        randomness=os.urandom,
        threads=2,
    )
    apps: list[ScriptedApp] = []

    async def scripted(work: Path, on_line: Callable[[str], None]) -> ScriptedApp:
        apps.append(ScriptedApp(work, on_line))
        return apps[-1]

    application = make_application(
        services,
        token_sha256=kit.operator_token_sha256,
        start_app=start_app or scripted,
    )
    carrier = transport(application) if transport else httpx.ASGITransport(app=application.asgi)
    async with (
        application.fastapi.router.lifespan_context(application.fastapi),
        httpx.AsyncClient(transport=carrier, base_url="http://server", timeout=20) as http,
    ):
        kits = [ClientKit.load(path) for path in federation.clients]
        yield Site(
            application=application,
            services=services,
            http=http,
            members={kit.client_id: Member(kit, http, folder) for kit in kits},
            operator_kit=OperatorKit.load(federation.operator),
            apps=apps,
            clock=clock,
        )
    await store.close()


def parts_of(body: bytes) -> list[bytes]:
    """An update as it is cut for its way up."""
    return [body[start : start + PART_BYTES] for start in range(0, len(body), PART_BYTES)]


def digest_of(body: bytes) -> str:
    """What a manifest says of an update."""
    return update_digest(len(body), (hashlib.sha256(part).digest() for part in parts_of(body))).hex()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that has no event of its own; pytest's time limit ends a wait in vain."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def events_of(run: RunOut, kind: str) -> list[dict[str, Any]]:
    """The data of all events of a kind."""
    return [event.data for event in run.events if event.kind == kind]


def as_json(response: httpx.Response) -> Any:
    """The body of a response."""
    return json.loads(response.content)
