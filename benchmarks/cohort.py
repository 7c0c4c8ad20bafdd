"""A round of many real agents on one machine, with the settings that a run has by default.

    python benchmarks/cohort.py [--agents 200] [--json]

All agents share one process: policy, ledger, transcript, protocol, codec, masks and requests are the real ones, and the
local work adds a number to a small model. A real `fedcore server` leads FedAvg over all of them. Nobody may be taken
for dead because the others keep the machine busy.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import httpx

from benchmarks.chaos_clients import Log, clients_of
from benchmarks.chaos_servers import Server
from benchmarks.common import APPS, Figure, Report, Table, parser, run, say, sized
from client_app.http.errors import tls_context
from fedcore.comparison.local_federation import free_port
from fedcore.errors import RunFailed
from fedcore.federation import OperatorKit, Policy, provision
from fedcore.flower.app import AppBundle
from fedcore.wire.operator import RunIn

AGENTS: Final = 200
ROUNDS: Final = 4
APP: Final = APPS / "chaos"
FINAL: Final = ("finished", "failed", "cancelled", "interrupted")


def main() -> int:
    """The command line."""
    options = parser("A round of many real agents on one machine.")
    options.add_argument("--agents", type=int, default=AGENTS, help=f"how many (default {AGENTS})")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """One run of a few rounds."""
    agents = sized(arguments, smallest=4, quick=20, whole=arguments.agents)
    with tempfile.TemporaryDirectory(prefix="fedcore-cohort-") as name:
        joined, state = asyncio.run(_carry_out(Path(name), agents))
    return report(agents, joined, state)


async def _carry_out(folder: Path, agents: int) -> tuple[float, dict[str, Any]]:
    """Seconds until all were connected, and the run with its events."""
    say(f"{agents} agents: keys and kits")
    made = provision(
        folder / "fed", name="cohort", clients=agents, now=datetime.now(UTC), hosts=["127.0.0.1"], port=free_port(),
        policy=Policy.own(agents, allow_differencing=True),
    )  # fmt: skip
    server = Server("server", folder, ("--federation", str(made.folder)))
    server.start()
    try:
        await server.ready()
        kit = OperatorKit.load(made.operator)
        headers = {"Authorization": f"Bearer {kit.token}", "Content-Type": "application/json"}
        options: dict[str, Any] = {"verify": tls_context(kit.ca_file), "headers": headers, "trust_env": False}
        started = time.monotonic()
        async with (
            clients_of(made.clients, APP, Log()),
            httpx.AsyncClient(base_url=made.server_url, timeout=60, **options) as http,
        ):
            while await _online(http) < agents:  # noqa: ASYNC110 - another process knows
                await asyncio.sleep(0.2)
            joined = time.monotonic() - started
            say(f"all are connected after {joined:.1f} s")
            return joined, await _run(http, agents)
    finally:
        server.stop()


async def _online(http: httpx.AsyncClient) -> int:
    return sum(one["online"] for one in (await http.get("/v1/clients")).json()["clients"])


async def _run(http: httpx.AsyncClient, agents: int) -> dict[str, Any]:
    bundle = AppBundle.from_folder(APP)
    config = {"num-server-rounds": ROUNDS, "min-nodes": agents, "strategy": "fedavg"}
    body = RunIn(
        app_sha256=bundle.sha256, files=dict(bundle.files), run_config=config, settings={"min-clients": agents}
    )
    submitted = await http.post("/v1/runs", content=body.model_dump_json())
    if submitted.status_code != 201:
        raise RunFailed(f"the run was refused: {submitted.text}")
    while True:
        state: dict[str, Any] = (await http.get(f"/v1/runs/{submitted.json()['run']}")).json()
        if state["status"] in FINAL:
            return state
        await asyncio.sleep(0.5)


def report(agents: int, joined: float, state: dict[str, Any]) -> Report:
    """The figures; raises RunFailed if the run did not end well."""
    if state["status"] != "finished":
        raise RunFailed(f"the run {state['status']}: {state['reason']}")
    done = [one for one in state["events"] if one["event"]["kind"] == "exchange-done"]
    dropped = sum(one["event"]["kind"] in ("dropped", "exchange-failed") for one in state["events"])
    seconds = [one["seconds"] for one in done]
    stages = done[-1]["event"]["stage_seconds"]
    return Report(
        benchmark="cohort",
        figures=(
            Figure(name="agents", value=agents, unit="count", aim=AGENTS, at_least=True),
            Figure(name="dropped", value=dropped, unit="count", aim=0),
        ),
        tables=(
            Table(
                title=f"{len(done)} rounds of {agents} agents",
                header=("what", "seconds"),
                rows=(
                    ("all connected", f"{joined:.1f}"),
                    (
                        "a round, the first left out",
                        f"{median(after - before for before, after in pairwise(seconds)):.1f}",
                    ),
                    *((f"the last one's stage {stage}", f"{spent:.1f}") for stage, spent in stages.items()),
                ),
            ),
        ),
        notes=("agents and server share the machine's cores; nothing is set but min-clients",),
    )


if __name__ == "__main__":
    sys.exit(main())
