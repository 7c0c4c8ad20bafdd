"""A run whose exchanges the test asks for, led by a server in this process and by a simulation alike.

What a leader decides is the same for both; `leader` runs a test with each of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from fedcore.errors import FedcoreError
from fedcore.federation import FederationFolder, Policy, provision
from fedcore.flower.app import FlowerApp
from fedcore.flower.apps.batched_clients import OnFailure, raise_failure
from fedcore.flower.apps.tensor_app import LocalResult
from fedcore.run.exchange import ExchangeReply, ExchangeRequest
from fedcore.run.groups import is_draw, make_ticket
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.state import ModelState
from fedcore.wire.events import FiguresFound, FigureSource, RunEvent
from fedcore.wire.tasks import Task
from server_app.runs.app.messages import BudgetReached, Replies

from .events import told
from .members import Failure, Local, Member
from .serverside import SETTINGS, TINY, ScriptedApp, Site, events_of, site

CLIENTS = 6
ALL = tuple(range(1, CLIENTS + 1))
POLICY = Policy.own(CLIENTS, min_cohort=3, min_threshold=2, min_corrupt=0.0, allow_x25519=True)


class NoReply(AssertionError):
    """An exchange without a reply, and why: what the ServerApp reads."""


class OverBudget(AssertionError):
    """One more exchange would exceed the privacy budget."""


class Leader(Protocol):
    """A run that began.

    locals
        What each client makes.
    tasks
        Those that the first client has worked for; a repeat in a simulation asks it for no work again.
    leaving
        Who leaves the next sum that it is asked for, and before which step, by `fedcore.simulation.memory_round.STEPS`.
    """

    locals: dict[int, Local]
    tasks: list[Task]
    leaving: dict[int, str]

    async def exchange(
        self, model: ModelState | None, *, message_type: str = "train", nodes: Sequence[int] = ALL
    ) -> list[ExchangeReply]:
        """One `send_and_receive`; raises NoReply and OverBudget."""
        ...

    async def figures(self, number: int, source: FigureSource, **metrics: float) -> None:
        """What the strategy made of the replies of an exchange, by its number from 1 on."""
        ...

    async def best(self) -> float | None:
        """The first weight of the best model."""
        ...

    async def finish(self) -> Mapping[str, list[dict[str, Any]]]:
        """End the run; its events by kind."""
        ...


Begin = Callable[..., Any]
"""A context manager: the run with some settings, by their names."""


_METHODS = {"input": "upload", "consistency": "sign"}
"""Steps that a member has under another name."""
_BEFORE = {"consistency": "survivors", "unmask": "consistency"}
"""What a member gets once the step before such a step is over for everybody."""


# --- a server -------------------------------------------------------------------------------------------


@dataclass
class ServerLeader:
    """A server, and members that take part in whatever it opens."""

    here: Site
    run: str
    app: ScriptedApp
    folder: Path
    locals: dict[int, Local] = field(init=False)
    tasks: list[Task] = field(default_factory=list)
    leaving: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.locals = {client: member.local for client, member in self.here.members.items()}

    async def exchange(
        self, model: ModelState | None, *, message_type: str = "train", nodes: Sequence[int] = ALL
    ) -> list[ExchangeReply]:
        for client, member in self.here.members.items():
            member.local = self.locals[client]
        asked = asyncio.create_task(self.app.exchange(model, nodes, message_type=message_type))
        members = [asyncio.create_task(self._take_part(self.here.members[node])) for node in nodes]
        try:
            await asyncio.wait([asked, *members], return_when=asyncio.FIRST_COMPLETED)
            answer = await asked
        finally:
            for member in members:
                member.cancel()
            await asyncio.gather(*members, return_exceptions=True)
        if isinstance(answer, Replies):
            return [_in_memory(reply) for reply in answer.replies]
        assert not isinstance(answer, BudgetReached) or answer.reason
        raise (OverBudget if isinstance(answer, BudgetReached) else NoReply)(str(answer))

    async def _take_part(self, member: Member) -> None:
        """In one exchange after another, draws among them, until it is cancelled."""
        while True:
            task = await member.enter()
            if member.id == ALL[0]:
                self.tasks.append(task)
            if is_draw(task):
                await member.put("place", make_ticket(member.kit.federation, task.digest(), member.kit.identity))
            elif step := self.leaving.pop(member.id, ""):
                await member.secure(until=_METHODS.get(step, step))
                if step in _BEFORE:
                    await member.get(_BEFORE[step])
                await member.withdraw()
            else:
                await member.secure()

    async def figures(self, number: int, source: FigureSource, **metrics: float) -> None:
        self.app.report_figures(number, source, **metrics)
        await self.app.nodes()

    async def best(self) -> float | None:
        path = self.folder / "best.safetensors"
        try:
            path.write_bytes((await self.here.operator("GET", f"/v1/runs/{self.run}/model?which=best")).content)
        except Failure:
            return None
        return float(ModelState.open(path)["weight"].reshape(-1)[0])

    async def finish(self) -> Mapping[str, list[dict[str, Any]]]:
        ended = await self.here.finish(self.run, self.app)
        kinds = {item.event.kind for item in ended.events}
        return {kind: events_of(ended, kind) for kind in kinds}


def _in_memory(reply: ExchangeReply) -> ExchangeReply:
    """Its file is removed before the next exchange."""
    state = reply.model()
    if state is None:
        return reply
    return replace(reply, state=ModelState.from_arrays({name: np.array(array) for name, array in state.items()}))


@asynccontextmanager
async def server(federation: FederationFolder, folder: Path, **settings: Any) -> AsyncIterator[ServerLeader]:
    async with site(federation, folder) as here:
        run, app = await here.begin(_named(settings))
        yield ServerLeader(here, run, app, folder)


# --- a simulation ---------------------------------------------------------------------------------------


@dataclass
class ScriptedClients:
    """A `ClientExecutor` whose clients make what the test says, and a `DropoutModel` by which they leave."""

    locals: dict[int, Local] = field(default_factory=lambda: {client: Local() for client in ALL})
    tasks: list[Task] = field(default_factory=list)
    leaving: dict[int, str] = field(default_factory=dict)
    processes: int = 0

    def run(
        self, task: Task, model: ModelState | None, clients: Sequence[int], on_failure: OnFailure = raise_failure
    ) -> Iterator[tuple[int, LocalResult]]:
        del on_failure
        if ALL[0] in clients:
            self.tasks.append(task)
        for client in clients:
            local = self.locals[client]
            made = local.train(model) if task.trains and model is not None else None
            yield (
                client,
                LocalResult(
                    examples=local.examples,
                    metrics=local.metrics,
                    layout=made.layout if made is not None else None,
                    write=made.write_to if made is not None else None,
                ),
            )

    def count(self, server_round: int, clients: Sequence[int]) -> None:
        """Nobody asks."""

    def on_warning(self, warn: Callable[[str], None]) -> None:
        """There are none."""

    def drops_at_step(self, cohort: Sequence[int]) -> dict[int, str]:
        return {client: self.leaving.pop(client) for client in cohort if client in self.leaving}

    def drops(self, cohort: Sequence[int]) -> Sequence[int]:
        return ()


@dataclass
class SimulationLeader:
    """A simulation that no ServerApp leads."""

    simulation: Simulation
    clients: ScriptedClients
    events: list[RunEvent]
    _number: int = 0

    @property
    def locals(self) -> dict[int, Local]:
        return self.clients.locals

    @property
    def tasks(self) -> list[Task]:
        return self.clients.tasks

    @property
    def leaving(self) -> dict[int, str]:
        return self.clients.leaving

    async def exchange(
        self, model: ModelState | None, *, message_type: str = "train", nodes: Sequence[int] = ALL
    ) -> list[ExchangeReply]:
        self._number += 1
        request = ExchangeRequest(
            message_type=message_type,
            nodes=tuple(nodes),
            server_round=self._number,
            model=model,
            arrays_key="arrays",
            configs={"config": {"server-round": self._number}},
            weight_key="num-examples",
        )
        try:
            return self.simulation.exchange(request)
        except FedcoreError as error:
            raise (OverBudget if error.check == "privacy-budget" else NoReply)(str(error)) from error

    async def figures(self, number: int, source: FigureSource, **metrics: float) -> None:
        self.simulation.report_figures(FiguresFound(server_round=number, source=source, metrics=metrics))

    async def best(self) -> float | None:
        best = self.simulation.best
        return None if best is None else float(best.state["weight"].reshape(-1)[0])

    async def finish(self) -> Mapping[str, list[dict[str, Any]]]:
        by_kind: dict[str, list[dict[str, Any]]] = {}
        for event in self.events:
            by_kind.setdefault(event.kind, []).append(told(event))
        return by_kind


def simulation(**settings: Any) -> SimulationLeader:
    app, clients, events = FlowerApp.load(TINY), ScriptedClients(), list[RunEvent]()
    made = Simulation(
        app=app,
        clients=CLIENTS,
        run_config=app.run_config,
        settings=JobSettings.from_mapping({**SETTINGS, **_named(settings)}),
        policy=POLICY,
        executor=clients,  # type: ignore[arg-type]  # what a run of secure exchanges asks of it
        dropouts=clients,
        emit=events.append,
    )
    return SimulationLeader(made, clients, events)


def _named(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in settings.items()}


# --- both -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def six(tmp_path_factory: pytest.TempPathFactory) -> FederationFolder:
    """A federation whose members decide as those of the simulation."""
    folder, now = tmp_path_factory.mktemp("both-leaders") / "fed", datetime.now(UTC)
    return provision(folder, name="testing", clients=CLIENTS, now=now, hosts=["127.0.0.1"], policy=POLICY)


@pytest.fixture(params=["server", "simulation"])
def leader(request: pytest.FixtureRequest, six: FederationFolder, tmp_path: Path) -> Begin:
    @asynccontextmanager
    async def begin(**settings: Any) -> AsyncIterator[Leader]:
        async with contextlib.AsyncExitStack() as stack:
            if request.param == "simulation":
                made = simulation(**settings)
                stack.enter_context(made.simulation.open())
                yield made
            else:
                yield await stack.enter_async_context(server(six, tmp_path, **settings))

    return begin
