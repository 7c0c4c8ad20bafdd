"""A server in this process, and the members of its federation.

`ScriptedApp` stands where the ServerApp's process would: the test asks for exchanges itself.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from fedcore.errors import WorkerDied
from fedcore.federation import ClientKit, FederationFolder, OperatorKit, ServerKit
from fedcore.flower.app import AppBundle
from fedcore.state import Layout, ModelState
from fedcore.wire.base import Message
from fedcore.wire.events import FiguresFound, FigureSource, RunOut
from fedcore.wire.operator import RunIn
from fedcore.wire.watch import LinkIn, LinkOut, session_cookie
from server_app.application import Application, make_application
from server_app.http.rate_limit import TokenBucket
from server_app.runs.app.messages import (
    AppEnd,
    AppFailure,
    BudgetReached,
    ExchangeCall,
    ExchangeRefused,
    FiguresReport,
    FromApp,
    NodesCall,
    PlainExchangeCall,
    PlainQuestion,
    PlainReplies,
    Replies,
    RoomCall,
    Start,
    WaitReport,
)
from server_app.services import Services

from .events import told
from .members import Failure, Member
from .messages import head, save_message
from .own_tasks import nothing_left
from .services import Clock, lenient, open_services

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


class ScriptedApp:
    """An AppConnection whose ServerApp is the test."""

    def __init__(self, folder: Path, on_line: Callable[[str], None]) -> None:
        self.folder = folder
        self.on_line = on_line
        self.start: Start | None = None
        self.stopped = False
        self.crashed = asyncio.Event()
        self.death = WorkerDied("the scripted app crashed")
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
        try:
            await asyncio.wait({asked, crashed}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                raise await self.ended()
            return asked.result()
        finally:
            asked.cancel()
            crashed.cancel()

    async def ended(self) -> WorkerDied:
        await self.crashed.wait()
        return self.death

    async def stop(self) -> None:
        self.stopped = True

    async def nodes(self) -> Message:
        self._asked.put_nowait(NodesCall())
        return await self._answers.get()

    def waits(self, nodes: int, setting: str) -> None:
        """The ServerApp asks for nodes in vain."""
        self._asked.put_nowait(WaitReport(nodes=nodes, setting=setting))

    def ask_for_room(self, layout: Layout, nodes: int) -> None:
        """The ServerApp is about to write a large model."""
        self._asked.put_nowait(RoomCall(layout=layout, nodes=nodes))

    async def answer(self) -> Message:
        """What the server says next."""
        return await self._answers.get()

    async def exchange(
        self,
        model: ModelState | None,
        nodes: Sequence[int],
        *,
        message_type: str = "train",
        configs: Mapping[str, Any] | None = None,
        ahead: Mapping[str, int] | None = None,
    ) -> Replies | PlainReplies | ExchangeRefused | BudgetReached:
        """One `send_and_receive` of the ServerApp."""
        number = next(self._numbers)
        if self.start is not None and self.start.aggregation == "plain":
            return await self.ask(dict.fromkeys(nodes, model), message_type=message_type)
        path = self.folder / f"model-{number}.safetensors"
        if model is not None:
            model.save(path)
        self._asked.put_nowait(
            ExchangeCall(
                message_type=message_type,
                nodes=list(nodes),
                server_round=number,
                model=str(path) if model is not None else None,
                arrays_key="arrays",
                configs=dict(configs or {"config": {"server-round": number}}),
                weight_key="num-examples",
                timeout=None,
                ahead=dict(ahead or {}),
            )
        )
        answer = await self._answers.get()
        assert isinstance(answer, Replies | ExchangeRefused | BudgetReached)
        return answer

    async def ask(
        self, models: Mapping[int, ModelState | None], *, message_type: str = "train", wanted_for: float | None = None
    ) -> PlainReplies | ExchangeRefused:
        """One plain `send_and_receive`: a message with a model for each of some nodes."""
        number = next(self._numbers)
        paths = {id(model): self.folder / f"message-{number}-{id(model)}" for model in models.values()}
        for model in models.values():
            save_message(paths[id(model)], model)
        self._asked.put_nowait(
            PlainExchangeCall(
                server_round=number,
                weight_key="num-examples",
                timeout=wanted_for,
                questions=[
                    PlainQuestion(node=node, message_type=message_type, head=head(node), content=str(paths[id(model)]))
                    for node, model in models.items()
                ],
            )
        )
        answer = await self._answers.get()
        assert isinstance(answer, PlainReplies | ExchangeRefused)
        return answer

    def report_figures(self, server_round: int, source: FigureSource, **metrics: float) -> None:
        """Tell what the strategy made of replies."""
        figures = FiguresFound(server_round=server_round, source=source, metrics=metrics)
        self._asked.put_nowait(FiguresReport(figures=figures))

    def finish(self, model: ModelState | None = None) -> None:
        path = self.folder / "final.safetensors"
        if model is not None:
            model.save(path)
        self._asked.put_nowait(AppEnd(model=str(path) if model is not None else None))

    def fail(self, reason: str) -> None:
        self._asked.put_nowait(AppFailure(reason=reason))


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
        self,
        settings: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        initial_model: str = "",
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
            initial_model=initial_model,
        )
        return RunOut.model_validate_json((await self.operator("POST", "/v1/runs", body)).content)

    async def begin(self, settings: Mapping[str, Any] | None = None) -> tuple[str, ScriptedApp]:
        """Submit a run whose ServerApp is the test."""
        count = len(self.apps)
        run = (await self.submit(settings)).run
        await until(lambda: len(self.apps) > count and self.apps[-1].start is not None)
        return run, self.apps[-1]

    async def link(self, **asked: Any) -> str:
        """The token of a new read-only link."""
        body = LinkIn(**{"label": "the board", "days": 7, **asked})
        return LinkOut.model_validate_json((await self.operator("POST", "/v1/links", body)).content).token

    @property
    def cookie(self) -> str:
        """The name of a session's cookie."""
        return session_cookie(self.operator_kit.authority)

    async def sign_in(self, token: str = "") -> str:
        """The cookie of a new session, by default of the operator."""
        asked = await self.http.post("/v1/session", json={"token": token or self.operator_kit.token})
        if asked.status_code >= 400:
            raise Failure(asked)
        self.http.cookies.clear()  # a test sends one where it means to
        return asked.cookies[self.cookie]

    async def signed_in(
        self, cookie: str, method: str, path: str, body: Message | None = None, *, own: bool = True
    ) -> httpx.Response:
        """A request of a person; Failure where the answer is a problem. own: whether the page itself sends it."""
        headers = {"Cookie": f"{self.cookie}={cookie}", "Content-Type": "application/json"}
        headers |= {"X-Fedcore": "1"} if own else {}
        content = body.model_dump_json() if body else None
        response = await self.http.request(method, path, content=content, headers=headers)
        if response.status_code >= 400:
            raise Failure(response)
        return response

    async def show(self, run: str) -> RunOut:
        """The run as it stands, with all its events so far."""
        return RunOut.model_validate_json((await self.operator("GET", f"/v1/runs/{run}")).content)

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
    federation: FederationFolder,
    folder: Path,
    *,
    start_app: Callable[..., Any] | None = None,
    transport: Callable[[Application], httpx.AsyncBaseTransport] | None = None,
    change: Callable[[Services], Services] = lambda services: services,
    **limits: Any,
) -> AsyncIterator[Site]:
    """A server over `folder` without a socket; `limits` change its ServerSettings, `change` what it holds.

    Its clock stands still. Where enough clients are there, it does not wait for more.
    """
    kit, clock, numbers = ServerKit.load(federation.server), Clock(), itertools.count(1)
    apps: list[ScriptedApp] = []

    async def scripted(work: Path, on_line: Callable[[str], None]) -> ScriptedApp:
        apps.append(ScriptedApp(work, on_line))
        return apps[-1]

    def new_id() -> str:
        return f"run-{next(numbers)}-{os.urandom(3).hex()}"

    async with open_services(kit, lenient(folder, **limits), clock, new_id=new_id, threads=2) as made:
        services = change(made)
        application = make_application(
            services, token_sha256=kit.operator_token_sha256, start_app=start_app or scripted
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
            await nothing_left("the server that they use is closed")


class _Endless(TokenBucket):
    def wait(self, address: str) -> float:
        return 1e9 * super().wait(address)


def hold_pace(here: Site) -> None:
    """From now on no time passes for strangers: who has to wait for a turn never gets it."""
    guard = here.application.guard
    guard.strangers = _Endless(rate=guard.strangers.rate, burst=guard.strangers.burst, clock=lambda: 0.0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that has no event of its own; pytest's time limit ends a wait in vain."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def events_of(run: RunOut, kind: str) -> list[dict[str, Any]]:
    """The data of all events of a kind."""
    return [told(item.event) for item in run.events if item.event.kind == kind]


def as_json(response: httpx.Response) -> Any:
    """The body of a response."""
    return json.loads(response.content)
