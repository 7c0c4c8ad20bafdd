"""A federation that the kill harness disturbs: its servers, clients and runs, and what is done to them meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np

from benchmarks.chaos_checks import History, Verdict, judge_run, judge_told
from benchmarks.chaos_clients import Log, clients_of
from benchmarks.chaos_faults import KILL_APP, KILL_SERVER, KILLS, Target, small_disk
from benchmarks.chaos_links import links_of
from benchmarks.chaos_runs import APP, CLIENTS, ROUNDS, RUNS, RunPlan, policy
from benchmarks.chaos_servers import Server
from benchmarks.chaos_storage import Storage
from benchmarks.common import say
from client_app.http.errors import tls_context
from fedcore.comparison.local_federation import free_port
from fedcore.errors import FedcoreError, RunFailed
from fedcore.federation import FederationFolder, OperatorKit, provision
from fedcore.state import ModelState
from fedcore.wire.operator import RunIn
from tests.support.postgres import cluster

FINAL: Final = ("finished", "failed", "cancelled", "interrupted")
RUN_SECONDS: Final = 240.0
"""After this time a run is left alone; one that has not ended after twice this time is one that does not end."""
FORK_SECONDS: Final = 30.0
"""A federation whose clients are beyond a backup for longer is replaced by a new one."""
AIMED_SECONDS: Final = 60.0
QUIET_SECONDS: Final = 4.0
"""The longest that a server that is up is left alone."""
PATIENCE: Final = 60.0
"""The longest that a message is waited for after a fault."""
IMPATIENT: Final = 0.2
"""Of the kills: the next disturbance may come before the server has recovered."""
SHORT: Final = {"train-seconds": 5.0, "step-seconds": 10.0}
"""With a planted fault, which has others wait for an update that its client takes for accepted."""


@dataclass(slots=True)
class Limits:
    """What is left to be done to all federations with one database together, and what with.

    app_share: of the kills that hit the ServerApp's process. runs: kinds of run that take turns. rounds: of a run.
    plant: a fault that the servers have; each kill then waits until an update has been accepted.
    """

    kills: int
    faults: int
    deadline: float
    app_share: float
    kinds: tuple[str, ...]
    runs: tuple[str, ...]
    rounds: int = ROUNDS
    elements: int = 64
    plant: str = ""
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One federation after the other is started, since that is what takes a processor longest."""

    def draw(self, target: Target) -> str | None:
        """The next thing to do to a federation; None once all is done, or time is up."""
        kinds = [kind for kind in self.kinds if target.possible(kind)]
        left = self.kills, self.faults if kinds else 0
        if max(left) <= 0 or time.monotonic() > self.deadline:
            return None
        if random.choices((True, False), [max(number, 0) for number in left])[0]:
            self.kills -= 1
            return KILL_APP if random.random() < self.app_share else KILL_SERVER
        self.faults -= 1
        return random.choice(kinds)

    def give_back(self, kind: str) -> None:
        """It did not come to it."""
        if kind in KILLS:
            self.kills += 1
        else:
            self.faults += 1


@dataclass(slots=True)
class Site:
    """A federation with its servers and clients. reference: what runs end with that end with the same bits."""

    database: str
    federation: FederationFolder
    http: httpx.AsyncClient
    addresses: tuple[str, ...]
    target: Target
    limits: Limits
    reference: dict[tuple[str, str], bytes]
    verdicts: dict[str, Verdict] = field(default_factory=lambda: {name: Verdict() for name in RUNS})
    number: Counter[str] = field(default_factory=Counter)
    """Of runs, by kind."""
    known: set[str] = field(default_factory=set)
    """Runs that were submitted."""
    calm: bool = False
    """Whether nothing is to happen until the run has ended."""
    forked: bool = False

    async def ask(self, method: str, path: str, body: RunIn | None = None) -> httpx.Response:
        """Send a request of the operator to the leading server, until one answers."""
        content = body.model_dump_json() if body else None
        while True:
            for address in self.addresses:
                with contextlib.suppress(httpx.TransportError):
                    response = await self.http.request(method, address + path, content=content)
                    if response.status_code < 500:
                        return response
            await asyncio.sleep(0.1)

    async def submit(self, plan: RunPlan) -> list[str]:
        """Submit a run; two if the server was killed after it had taken the first, and before it said so."""
        submitted = await self.ask("POST", "/v1/runs", plan.body())
        if submitted.status_code != 201:
            raise RunFailed(f"the run was refused: {submitted.text}")
        runs = [one["run"] for one in (await self.ask("GET", "/v1/runs")).json()["runs"]]
        new = [run for run in reversed(runs) if run not in self.known]
        self.known.update(new)
        return new

    async def follow(self, run: str) -> tuple[dict[str, Any], bytes | None]:
        """One run to its end: its state with all events, and its last model's values."""
        path = f"/v1/runs/{run}"
        began = sound = time.monotonic()
        model: httpx.Response | None = None
        while True:
            response = await self.ask("GET", path)
            if response.status_code == 404:  # a backup was put back that is older than it
                return {"run": run, "status": "failed", "reason": "the server does not know it", "events": []}, None
            state: dict[str, Any] = response.json()
            if state["status"] in FINAL:
                if model is not None:
                    return state, _values(model.content) if model.status_code == 200 else None
                # A backup may be put back before the model is there, so the run has to be over still afterwards.
                model = await self.ask("GET", f"{path}/model")
                continue
            model = None
            now = time.monotonic()
            self.calm = now > began + RUN_SECONDS
            if now > began + 2 * RUN_SECONDS:
                return {**state, "reason": f"not ended within {RUN_SECONDS:g} s without a disturbance"}, None
            sound = sound if self.target.restores and self.target.is_forked else now
            if now > sound + FORK_SECONDS:
                self.forked = True
                return {**state, "status": "failed", "reason": "its clients are beyond the backup"}, None
            await asyncio.sleep(0.5)  # the answer has all events

    async def disturb(self) -> None:
        """Do one thing after another at random instants, until all is done, or time is up."""
        log, limits = self.target.log, self.limits
        while not self.forked and (kind := limits.draw(self.target)) is not None:
            while self.calm and not self.forked:  # noqa: ASYNC110 - the run has no event
                await asyncio.sleep(0.5)
            await asyncio.sleep(random.uniform(0.0, QUIET_SECONDS) * random.random())
            known, began, before = len(log.accepted), len(log.models), self.target.counts.total()
            while limits.plant and len(log.accepted) == known:  # noqa: ASYNC110 - the log has no event
                await asyncio.sleep(0.02)
            hurried = kind in KILLS and random.random() < IMPATIENT
            await self.target.inflict(kind, random.uniform(0.0, PATIENCE / 6) if hurried else PATIENCE)
            if self.target.counts.total() == before:
                limits.give_back(kind)
                continue
            say(f"{self.database}: {kind}; {limits.kills} kills and {limits.faults} faults are left")
            # Two such kills at one exchange would end the run, and nobody would see what became of the update.
            patience = time.monotonic() + AIMED_SECONDS
            while limits.plant and len(log.models) == began and time.monotonic() < patience:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def carry_out(self, plan: RunPlan) -> None:
        """One run, judged."""
        self.target.runs, self.calm = plan.kind, False
        deaths, restores = self.target.deaths, self.target.restores_over
        for run in await self.submit(plan):
            await self._judge(plan, run, deaths, restores)
            deaths = self.target.deaths

    async def _judge(self, plan: RunPlan, run: str, deaths: int, restores: int) -> None:
        """Follow a run and judge it; deaths, restores: how many were over before it."""
        target, verdict, began = self.target, self.verdicts[plan.kind], time.monotonic()
        state, final = await self.follow(run)
        history = History(
            strategy=plan.strategy,
            server_kills=target.deaths - deaths,
            flips=frozenset(exchange for run, exchange in target.flips if run == state["run"]),
            restored=target.restores > restores or self.forked,
        )
        judge_run(verdict, state, target.log, final, history)
        self.number[plan.kind] += 1
        comparable = RUNS[plan.kind].same_bits and _whole(state)
        if comparable and final and self.reference.setdefault((plan.kind, plan.strategy), final) != final:
            verdict.other_bits.append(f"{state['run']}: {plan.strategy} ends with other bits")
        seconds = time.monotonic() - began
        say(f"{self.database}: {plan.kind} {plan.strategy} {state['status']} after {seconds:.0f} s; {verdict.findings}")


async def disturbed(
    folder: Path, database: str, limits: Limits, reference: dict[tuple[str, str], bytes], done: Callable[[Site], None]
) -> None:
    """One federation after another, until the limits are reached; `done` hears of each after each run."""
    for number in itertools.count():
        if not await _disturbed(folder / str(number), database, limits, reference, done):
            return


async def _disturbed(
    folder: Path, database: str, limits: Limits, reference: dict[tuple[str, str], bytes], done: Callable[[Site], None]
) -> bool:
    """Runs one after the other; whether another federation has to take this one's place."""
    first = random.randrange(len(limits.runs))
    folder.mkdir(parents=True)  # noqa: ASYNC240 - quick
    async with contextlib.AsyncExitStack() as stack:
        async with limits.opening:
            here = await stack.enter_async_context(site(folder, database, limits, reference))
        verdict = here.verdicts[limits.runs[first]]
        try:
            async with clients_of(here.federation.clients, APP, here.target.log):
                killer = asyncio.create_task(here.disturb())
                number = 0
                while (not killer.done() or number == 0) and not here.forked:
                    settings = SHORT if limits.plant else None
                    plan = RunPlan.drawn(
                        first + number, limits.runs, rounds=limits.rounds, elements=limits.elements, settings=settings
                    )
                    verdict, number = here.verdicts[plan.kind], number + 1
                    await here.carry_out(plan)
                    done(here)
                await killer
        except (FedcoreError, OSError, ValueError) as error:  # a server that does not start again is a finding, too
            verdict.unfinished.append(f"{database}: {type(error).__name__}: {error}")
        judge_told(verdict, here.target.log)
        done(here)
        return here.forked


def _whole(state: dict[str, Any]) -> bool:
    """Whether all clients were in all sums, at the first attempt: only then are the updates those of another run."""
    events = [one["event"] for one in state["events"]]
    done = [event for event in events if event["kind"] == "exchange-done"]
    failed = any(event["kind"] == "exchange-failed" for event in events)
    return state["status"] == "finished" and not failed and all(len(event["survivors"]) == CLIENTS for event in done)


@contextlib.asynccontextmanager
async def site(
    folder: Path, database: str, limits: Limits, reference: dict[tuple[str, str], bytes]
) -> AsyncIterator[Site]:
    """A federation whose servers are up."""
    made = provision(
        folder / "fed", name="chaos", clients=CLIENTS, now=datetime.now(UTC), hosts=["127.0.0.1"], port=free_port(),
        policy=policy(),
    )  # fmt: skip
    async with contextlib.AsyncExitStack() as stack:
        disk = stack.enter_context(small_disk(folder / "disk")) if database == "sqlite" else None
        data = disk or (folder if database == "sqlite" else folder / "objects")
        storage = Storage(data=data, server_file=made.server / "server.toml", spare=folder / "backups")
        servers, addresses = _servers(made, folder, storage, limits.plant, stack, shared=database != "sqlite")
        links = await stack.enter_async_context(links_of(made.clients, addresses))
        target = Target(servers, links, storage, disk, made.clients, Log())
        for server in servers:
            stack.callback(server.stop)
        await target.start_all()
        kit = OperatorKit.load(made.operator)
        headers = {"Authorization": f"Bearer {kit.token}", "Content-Type": "application/json"}
        verify = tls_context(kit.ca_file)
        async with httpx.AsyncClient(verify=verify, headers=headers, timeout=30, trust_env=False) as http:
            yield Site(database, made, http, addresses, target, limits, reference)


def _servers(
    made: FederationFolder,
    folder: Path,
    storage: Storage,
    fault: str,
    stack: contextlib.AsyncExitStack,
    *,
    shared: bool,
) -> tuple[list[Server], tuple[str, ...]]:
    """The servers of a federation, not started yet, and their addresses; its kits name all of them."""
    federation = ("--federation", str(made.folder))
    if not shared:
        return [Server("server", folder, (*federation, "--data-dir", str(storage.data)), fault)], (made.server_url,)
    storage.cluster, storage.name = stack.enter_context(cluster()), "chaos"
    _replace(
        storage.server_file,
        ('database = ""', f'database = "{storage.cluster.create(storage.name)}"'),
        ('objects = ""', f'objects = "{storage.data}"'),
    )
    addresses = (made.server_url, f"https://127.0.0.1:{free_port()}")
    for kit in (*made.clients, made.operator):
        path = next(kit / name for name in ("client.toml", "operator.toml") if (kit / name).exists())
        named = f"servers = {json.dumps(addresses)}\n"
        path.write_text(named + path.read_text().replace(f'server-url = "{made.server_url}"\n', ""))
    servers = [
        Server(
            f"server-{number}",
            folder,
            (*federation, "--port", address.rpartition(":")[2], "--data-dir", str(folder / f"data-{number}")),
            fault,
        )
        for number, address in enumerate(addresses, start=1)
    ]
    return servers, addresses


def _replace(path: Path, *pairs: Sequence[str]) -> None:
    text = path.read_text(encoding="utf-8")
    for line, other in pairs:
        text = text.replace(line, other)
    path.write_text(text, encoding="utf-8")


def _values(content: bytes) -> bytes:
    """The values of a model."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return ModelState.open(Path(file.name))["digits"].astype(np.float32).tobytes()
