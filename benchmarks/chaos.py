"""Kills at random instants: is an update lost or doubled, is anybody told two things, does a run not end?

    python benchmarks/chaos.py [--kills N] [--faults N] [--kinds KIND ...] [--elements N]
        [--database sqlite|postgres|both] [--plant fold-before-commit] [--json]

Clients that speak the real protocol in this process (`chaos_clients.py`), and a real `fedcore server` with its
ServerApp process, killed with SIGKILL and started again at once, until there were so many kills. Every run is FedAvg,
whose model shows each sum in its digits, or FedAdam; the last model of either must have the bits of an undisturbed run,
since the clients here round by draws that follow from the model. With PostgreSQL two servers share the database and one
folder of objects, and the clients know both. --faults has other things happen as well (`chaos_faults.py`): processes
freeze, lines break, disks are full or change bits. --plant plants a fault, which must be found.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.chaos_checks import Verdict, judge_run, judge_told
from benchmarks.chaos_clients import Log, clients_of
from benchmarks.chaos_faults import FLIP, KINDS, Target, small_disk
from benchmarks.chaos_links import links_of
from benchmarks.chaos_servers import Server
from benchmarks.common import APPS, Figure, Report, Table, parser, run, say, sized
from client_app.http.errors import tls_context
from fedcore.comparison.local_federation import free_port
from fedcore.errors import RunFailed
from fedcore.federation import FederationFolder, OperatorKit, Policy, provision
from fedcore.flower.app import AppBundle
from fedcore.state import ModelState
from fedcore.wire.operator import RunIn
from tests.support.postgres import cluster

CLIENTS = 4
ROUNDS = 4
KILLS = 20
APP = APPS / "chaos"
FINAL = ("finished", "failed", "cancelled", "interrupted")
RUN_SECONDS = 600.0
"""A run that has not ended by then, however often it was disturbed, is one that does not end."""
AIMED_SECONDS = 60.0
QUIET_SECONDS = 6.0
"""The longest that a server that is up is left alone."""
SETTINGS = {
    "min-clients": CLIENTS, "join-seconds": 60.0, "train-seconds": 120.0, "step-seconds": 120.0,
    "liveness-seconds": 60.0, "w-max": 1,
}  # fmt: skip

SHORT = {"train-seconds": 5.0, "step-seconds": 10.0}
"""With a planted fault, which has others wait for an update that its client takes for accepted."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How often to kill, for how many seconds at most, and which share of the kills hits the ServerApp's process.

    rounds: of a run. aimed: each kill waits until an update has been accepted, for a fault that shows nowhere else.
    """

    kills: int
    seconds: float
    app_share: float
    aimed: bool
    rounds: int
    faults: int = 0
    kinds: tuple[str, ...] = ()
    elements: int = 64


@dataclass(slots=True)
class Site:
    """A federation with its servers and clients."""

    federation: FederationFolder
    servers: list[Server]
    http: httpx.AsyncClient
    addresses: tuple[str, ...]
    log: Log
    settings: dict[str, float]
    target: Target
    rounds: int = ROUNDS
    elements: int = 64
    verdict: Verdict = field(default_factory=Verdict)
    kills: int = 0
    app_kills: int = 0
    seconds: list[float] = field(default_factory=list)
    """From a restart to the next message that was accepted."""

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

    async def carry_out(self, strategy: str) -> tuple[dict[str, Any], bytes | None]:
        """One run to its end: its state with all events, and its last model's values."""
        bundle = AppBundle.from_folder(APP)
        config = {"strategy": strategy, "num-server-rounds": self.rounds, "min-nodes": CLIENTS}
        config["elements"] = self.elements
        body = RunIn(app_sha256=bundle.sha256, files=dict(bundle.files), run_config=config, settings=self.settings)
        submitted = await self.ask("POST", "/v1/runs", body)
        if submitted.status_code != 201:
            raise RunFailed(f"the run was refused: {submitted.text}")
        path = f"/v1/runs/{submitted.json()['run']}"
        deadline = time.monotonic() + RUN_SECONDS
        while (state := (await self.ask("GET", path)).json())["status"] not in FINAL:
            if time.monotonic() > deadline:
                return {**state, "reason": f"not ended within {RUN_SECONDS:g} s"}, None
            await asyncio.sleep(0.1)
        model = await self.ask("GET", f"{path}/model")
        return state, _values(model.content) if model.status_code == 200 else None

    async def disturb(self, limits: Limits) -> None:
        """Kill and start again, at random instants, a number of times, or until time is up."""
        deadline = time.monotonic() + limits.seconds
        kinds = [kind for kind in limits.kinds if self.target.possible(kind)]
        while time.monotonic() < deadline:
            left = limits.kills - self.kills, limits.faults - self.target.faults.total() if kinds else 0
            if max(left) <= 0:
                return
            await asyncio.sleep(random.uniform(0.0, QUIET_SECONDS) * random.random())
            if random.choices((False, True), [max(one, 0) for one in left])[0]:
                await self.target.inflict(random.choice(kinds), self.log, patience=2 * QUIET_SECONDS)
                say(f"faults: {dict(self.target.faults)}")
                continue
            known, began = len(self.log.accepted), len(self.log.models)
            while limits.aimed and len(self.log.accepted) == known:  # noqa: ASYNC110 - the log has no event
                await asyncio.sleep(0.02)
            server = random.choice(self.servers)
            if random.random() < limits.app_share:
                if server.signal_app(signal.SIGKILL):
                    self.kills += 1
                    self.app_kills += 1
                continue
            server.kill()
            self.kills += 1
            say(f"kill {self.kills}: {server.name}")
            server.start()
            restarted = time.monotonic()
            await server.ready()
            await self._until_heard(restarted)
            # Two such kills at one exchange would end the run, and nobody would see what became of the update.
            patience = time.monotonic() + AIMED_SECONDS
            while limits.aimed and len(self.log.models) == began and time.monotonic() < patience:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def _until_heard(self, restarted: float) -> None:
        """Until a message was accepted after the restart, or it is time for the next kill."""
        deadline = time.monotonic() + random.uniform(0.0, 2 * QUIET_SECONDS)
        while time.monotonic() < deadline:
            if self.log.last_message > restarted:
                self.seconds.append(self.log.last_message - restarted)
                return
            await asyncio.sleep(0.02)


def main() -> int:
    """The command line."""
    options = parser("Servers killed at random instants, while clients train.")
    options.add_argument("--kills", type=int, default=KILLS, help=f"with each database (default {KILLS})")
    options.add_argument("--database", choices=("sqlite", "postgres", "both"), default="sqlite")
    options.add_argument("--minutes", type=float, default=float("inf"), help="with each database, at the most")
    options.add_argument("--app-share", type=float, default=0.15, help="of the kills that hit the ServerApp's process")
    options.add_argument("--faults", type=int, default=0, help="other than kills, with each database (default 0)")
    options.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="of them (default all)")
    options.add_argument("--elements", type=int, default=64, help="of the model (default 64)")
    options.add_argument("--plant", choices=("fold-before-commit",), default="", help="a fault that has to be found")
    options.add_argument("--seed", type=int, default=1, help="of the instants (default 1)")
    options.add_argument("--folder", type=Path, help="where everything is kept; default: nowhere")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """One database after the other."""
    random.seed(arguments.seed)
    kills = sized(arguments, smallest=1, quick=4, whole=arguments.kills)
    databases = ("sqlite", "postgres") if arguments.database == "both" else (arguments.database,)
    sites = {}
    for database in databases:
        with tempfile.TemporaryDirectory(prefix="fedcore-chaos-") as temporary:
            folder = (arguments.folder or Path(temporary)) / database
            folder.mkdir(parents=True)
            began = time.monotonic()
            limits = Limits(
                kills,
                60 * arguments.minutes,
                arguments.app_share,
                aimed=bool(arguments.plant),
                rounds=sized(arguments, smallest=1, quick=ROUNDS, whole=ROUNDS),
                faults=arguments.faults,
                kinds=tuple(arguments.kinds),
                elements=arguments.elements,
            )
            made = asyncio.run(disturbed(folder, database, limits, arguments.plant))
            sites[database] = (made, time.monotonic() - began)
    return report(sites, planted=arguments.plant)


async def disturbed(folder: Path, database: str, limits: Limits, fault: str) -> Site:
    """Runs one after the other, until there were so many kills; what was found is in the site's verdict."""
    async with site(folder, database, fault) as here, clients_of(here.federation.clients, APP, here.log):
        reference: dict[str, bytes | None] = {}
        here.rounds, here.elements = limits.rounds, limits.elements
        for strategy in ("fedavg", "fedadam", "fedavg"):
            state, final = await here.carry_out(strategy)
            judge_run(here.verdict, state, here.log, final, digits=strategy == "fedavg")
            if reference.setdefault(strategy, final) != final:
                raise RunFailed("two undisturbed runs end with other bits: those of disturbed ones say nothing")
        say(f"undisturbed runs: {here.verdict}")
        killer = asyncio.create_task(here.disturb(limits))
        number = 0
        while not killer.done() or number == 0:
            number += 1
            strategy, before = ("fedavg", "fedadam")[number % 2], here.kills - here.app_kills
            flips = here.target.faults[FLIP]
            state, final = await here.carry_out(strategy)
            flips = here.target.faults[FLIP] - flips
            killed = here.kills - here.app_kills - before + flips
            judge_run(
                here.verdict, state, here.log, final,
                digits=strategy == "fedavg", server_kills=killed, damages=flips,
            )  # fmt: skip
            if state["status"] == "finished" and final != reference[strategy] and _whole(state):
                here.verdict.other_bits.append(f"{state['run']}: {strategy} ends with other bits")
            say(f"run {number}, {strategy}: {state['status']}, {here.kills} kills; {here.verdict}")
        await killer
        judge_told(here.verdict, here.log)
    return here


def _whole(state: dict[str, Any]) -> bool:
    """Whether all clients were in all sums, at the first attempt: only then are the updates those of another run."""
    done = [one["event"] for one in state["events"] if one["event"]["kind"] == "exchange-done"]
    failed = any(one["event"]["kind"] == "exchange-failed" for one in state["events"])
    return not failed and all(len(event["survivors"]) == CLIENTS for event in done)


@contextlib.asynccontextmanager
async def site(folder: Path, database: str, fault: str) -> AsyncIterator[Site]:
    """A federation whose servers are up."""
    policy = Policy.own(CLIENTS, allow_differencing=True, max_releases=100_000)
    made = provision(
        folder / "fed", name="chaos", clients=CLIENTS, now=datetime.now(UTC), hosts=["127.0.0.1"], port=free_port(),
        policy=policy,
    )  # fmt: skip
    async with contextlib.AsyncExitStack() as stack:
        disk = stack.enter_context(small_disk(folder / "disk")) if database == "sqlite" else None
        data = disk or (folder if database == "sqlite" else folder / "objects")
        servers, addresses = _servers(made, folder, database, fault, stack, data)
        links = await stack.enter_async_context(links_of(made.clients, addresses))
        target = Target(servers, links, data, disk, shared=database != "sqlite")
        for server in servers:
            stack.callback(server.stop)
            server.start()
        for server in servers:
            await server.ready()
        kit = OperatorKit.load(made.operator)
        headers = {"Authorization": f"Bearer {kit.token}", "Content-Type": "application/json"}
        verify = tls_context(kit.ca_file)
        settings = SETTINGS | SHORT if fault else SETTINGS
        async with httpx.AsyncClient(verify=verify, headers=headers, timeout=30, trust_env=False) as http:
            yield Site(
                federation=made, servers=servers, http=http, addresses=addresses, log=Log(), settings=settings,
                target=target,
            )  # fmt: skip


def _servers(
    made: FederationFolder, folder: Path, database: str, fault: str, stack: contextlib.AsyncExitStack, data: Path
) -> tuple[list[Server], tuple[str, ...]]:
    """The servers of a federation, not started yet, and their addresses; its kits name all of them."""
    federation = ("--federation", str(made.folder))
    if database == "sqlite":
        return [Server("server", folder, (*federation, "--data-dir", str(data)), fault)], (made.server_url,)
    url = stack.enter_context(cluster()).create()
    settings = made.server / "server.toml"
    shared = {'database = ""': f'database = "{url}"', 'objects = ""': f'objects = "{folder / "objects"}"'}
    text = settings.read_text(encoding="utf-8")
    for line, other in shared.items():
        text = text.replace(line, other)
    settings.write_text(text, encoding="utf-8")
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


def _values(content: bytes) -> bytes:
    """The values of a model."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return ModelState.open(Path(file.name))["digits"].tobytes()


def report(sites: dict[str, tuple[Site, float]], *, planted: str) -> Report:
    """The figures of each database."""
    figures, rows, notes = [], [], []
    for database, (site_, seconds) in sites.items():
        verdict = site_.verdict
        counts = {
            "lost": len(verdict.lost), "doubled": len(verdict.doubled), "equivocations": len(verdict.equivocations),
            "unfinished": len(verdict.unfinished), "other_bits": len(verdict.other_bits),
            "wrongly_blamed": len(verdict.wrongly_blamed),
        }  # fmt: skip
        figures.append(Figure(name=f"kills_{database}", value=site_.kills, unit="count", aim=200, at_least=True))
        if planted:
            found = float(not verdict.clean)
            figures.append(Figure(name=f"planted_fault_found_{database}", value=found, aim=1, at_least=True))
        else:
            figures += [Figure(name=f"{k}_{database}", value=n, unit="count", aim=0) for k, n in counts.items()]
        faults = site_.target.faults
        if faults:
            figures.append(
                Figure(name=f"faults_{database}", value=faults.total(), unit="count", aim=100, at_least=True)
            )
        figures += [
            Figure(name=f"longest_silence_s_{kind}_{database}", value=seconds_, unit="seconds", aim=20)
            for kind, seconds_ in sorted(site_.target.silence.items())
        ]
        notes += [f"{database}: {number} {kind}" for kind, number in sorted(faults.items())]
        heard = statistics.median(site_.seconds) if site_.seconds else float("nan")
        figures.append(Figure(name=f"seconds_to_next_message_{database}", value=heard, unit="seconds", aim=10))
        done = (site_.kills, site_.app_kills, verdict.exchanges, verdict.failed_exchanges, verdict.given_up)
        rows.append((database, *map(str, (*done, *counts.values())), f"{seconds / max(site_.kills, 1):.1f}"))
        notes += [f"{database}: {text}" for text in verdict.findings[:20]]
    header = ("database", "kills", "of the app", "exchanges", "failed", "given up", *counts, "seconds a kill")
    return Report(
        benchmark="chaos",
        figures=tuple(figures),
        tables=(Table(title="Kills at random instants", header=header, rows=tuple(rows)),),
        notes=("given up: runs that end since a server was killed twice before it came any further", *notes),
    )


if __name__ == "__main__":
    sys.exit(main())
