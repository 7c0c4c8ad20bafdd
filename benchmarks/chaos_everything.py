"""Kills of all that runs, at random instants: server, ServerApp, agents, ranks, and the operator's terminal.

    python benchmarks/chaos_everything.py [--kills N] [--freeze-share SHARE] [--seed S] [--json]

Five `fedcore client` over an app whose client i adds 4**(i-1) steps, one `fedcore server`, one `fedcore runs attach`:
all real processes. One after the other is killed with SIGKILL and started again at once, as systemd would; a rank is
started again by its agent, a ServerApp by its server. With --freeze-share some are stopped for a while (SIGSTOP) in
place of a kill. A client that is killed may drop out of an exchange, so what is
checked is that every run ends well, and that its model is the one that the survivors of its sums give, no more and no
less. `chaos.py` kills servers alone, and there no update at all may be lost.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import httpx
import numpy as np
import psutil

from benchmarks.chaos_checks import may_give_up
from benchmarks.common import APPS, Figure, Report, Table, parser, quiet_environment, run, say, sized
from client_app.http.errors import tls_context
from fedcore.comparison.local_federation import FEDCORE, free_port
from fedcore.errors import RunFailed
from fedcore.federation import FederationFolder, OperatorKit, Policy, provision
from fedcore.flower.app import AppBundle
from fedcore.state import ModelState
from fedcore.system.workers.child_processes import ChildProcesses
from fedcore.wire.operator import RunIn
from tests.support.forked import Made

APP: Final = APPS / "chaos"
CLIENTS: Final = 5
QUORUM: Final = 3
ROUNDS: Final = 4
STEP: Final = 1e-3
"""What the app's first client adds."""
KILLS: Final = 100
RUN_SECONDS: Final = 600.0
"""A run that has not ended by then is one that does not end."""
LONGEST_PAUSE: Final = 10.0
LONGEST_FREEZE: Final = 20.0
"""Longer than a client may be silent."""
FINAL: Final = ("finished", "failed", "cancelled", "interrupted")
SETTINGS: Final = {
    "min-clients": QUORUM, "quorum": 0, "join-seconds": 120.0, "train-seconds": 60.0, "step-seconds": 60.0,
    "liveness-seconds": 15.0, "w-max": 1, "max-attempts": 10,
}  # fmt: skip
SHARES: Final = {"server": 0.2, "ServerApp": 0.1, "agent": 0.3, "rank": 0.3, "terminal": 0.1}
PROGRAMS: Final = {"ServerApp": "server_app.runs.app.main", "rank": "client_app.ranks.rank"}


@dataclass(slots=True)
class Everything:
    """A federation as real processes, and what was done to it."""

    made: FederationFolder
    group: ChildProcesses
    folder: Path
    http: httpx.Client
    kills: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    exchanges: int = 0
    failed: int = 0
    dropped: int = 0
    given_up: int = 0
    pause: float = LONGEST_PAUSE
    freeze_share: float = 0.0
    _running: dict[str, Any] = field(default_factory=dict)

    def start(self, name: str, *words: str | Path) -> None:
        """Start a process, or start it again with the words that it had."""
        command = list(words) or self._running[name][1]
        self._running[name] = self.group.start(name, [*FEDCORE, *map(str, command)]), command

    def start_all(self) -> None:
        """The server and all clients; they find each other."""
        self.start("server", "server", "--federation", self.made.folder)
        for number, kit in enumerate(self.made.clients, start=1):
            self.start(f"agent-{number}", "client", "--kit", kit, "--app", APP, "--node-config", f"number={number}")

    def kill_one(self) -> None:
        """SIGKILL to something, and a start of what nobody else starts again; or SIGSTOP for a while."""
        what = random.choices(list(SHARES), list(SHARES.values()))[0]
        name = what if what in ("server", "terminal") else f"agent-{random.randint(1, CLIENTS)}"
        if what in PROGRAMS:
            below = self._below("server" if what == "ServerApp" else name, PROGRAMS[what])
            for process in below[:1]:
                with contextlib.suppress(psutil.Error):
                    if self._freezes(what, process):
                        return
                    process.send_signal(signal.SIGKILL)
                    self.kills[what] += 1
            return
        process = self._running[name][0]
        with contextlib.suppress(psutil.Error):
            if self._freezes(what, psutil.Process(process.pid)):
                return
        process.kill()
        process.wait()
        self.kills[what] += 1
        self.start(name)

    def _freezes(self, what: str, process: psutil.Process) -> bool:
        """Stop a process for some seconds if the dice say so; whether they do."""
        if random.random() >= self.freeze_share:
            return False
        process.suspend()
        self.kills[f"{what}, frozen"] += 1

        def go_on() -> None:
            with contextlib.suppress(psutil.Error):
                process.resume()

        threading.Timer(random.uniform(1.0, LONGEST_FREEZE), go_on).start()
        return True

    def _below(self, name: str, program: str) -> list[psutil.Process]:
        """Its processes that run a program; those that the tests' fork server made for it say so themselves."""
        above = self._running[name][0].pid
        found = []
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(above).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if program in child.cmdline():
                        found.append(child)
        for process in psutil.process_iter():
            made = Made.of(process.pid)
            if made is not None and made.by == above and program in made.words.split():
                found.append(process)
        return found

    def ask(self, method: str, path: str, body: RunIn | None = None) -> httpx.Response:
        """A request of the operator, until the server is there to answer."""
        deadline = time.monotonic() + RUN_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                answer = self.http.request(method, path, content=body.model_dump_json() if body else None)
                if answer.status_code < 500:
                    return answer
            time.sleep(0.1)
        raise RunFailed(f"nobody answers {path}")

    def carry_out(self, kills: int) -> None:
        """One run, with kills until there were as many in all; its model is judged."""
        bundle = AppBundle.from_folder(APP)
        config = {"num-server-rounds": ROUNDS, "min-nodes": QUORUM, "strategy": "fedavg"}
        body = RunIn(app_sha256=bundle.sha256, files=dict(bundle.files), run_config=config, settings=SETTINGS)
        submitted = self.ask("POST", "/v1/runs", body)
        if submitted.status_code != 201:
            raise RunFailed(f"the run was refused: {submitted.text}")
        name = submitted.json()["run"]
        self.start("terminal", "runs", "attach", name, "--operator", self.made.operator)
        deadline, before = time.monotonic() + RUN_SECONDS, self.kills["server"]
        while (state := self.ask("GET", f"/v1/runs/{name}").json())["status"] not in FINAL:
            if time.monotonic() > deadline:
                self.unfinished.append(f"{name}: not ended within {RUN_SECONDS:g} s")
                return
            time.sleep(random.uniform(0.0, self.pause))
            if self.kills.total() < kills and self._online() > QUORUM:
                self.kill_one()
        self._judge(name, state, self.kills["server"] - before)

    def _online(self) -> int:
        """How many clients are connected: a start takes seconds, and nothing can be learnt of a run without clients."""
        return sum(client["online"] for client in self.ask("GET", "/v1/clients").json()["clients"])

    def _judge(self, name: str, state: dict[str, Any], server_kills: int) -> None:
        events = [one["event"] for one in state["events"]]
        done = [event for event in events if event["kind"] == "exchange-done"]
        self.exchanges += len(done)
        self.failed += sum(event["kind"] == "exchange-failed" for event in events)
        self.dropped += sum(event["kind"] == "dropped" for event in events)
        if may_give_up(state, server_kills):
            self.given_up += 1
            return
        if state["status"] != "finished":
            self.unfinished.append(f"{name}: {state['status']}, {state['reason']}")
            return
        path = self.folder / "model.safetensors"
        path.write_bytes(self.ask("GET", f"/v1/runs/{name}/model").content)
        sums = [[int(one.rpartition("-")[2]) for one in event["survivors"]] for event in done]
        if fault := other_model(float(np.median(ModelState.open(path)["digits"])), sums):
            self.wrong.append(f"{name}: {fault}")


def other_model(found: float, sums: Sequence[Sequence[int]]) -> str:
    """Whether a model is not the one that these sums give, each named by its clients' numbers; "" where it is.

    One client more or less in one sum moves the mean by a fifth of a step at the least.
    """
    wanted = sum(mean_step(survivors) for survivors in sums)
    if len(sums) == ROUNDS and abs(found - wanted) < STEP / 8:
        return ""
    return f"after {len(sums)} sums the model has {found / STEP:.3f} steps, their survivors give {wanted / STEP:.3f}"


def mean_step(survivors: Sequence[int]) -> float:
    """What the mean over these clients adds."""
    return STEP * sum(1 << 2 * (client - 1) for client in survivors) / len(survivors)


def main() -> int:
    """The command line."""
    options = parser("All processes of a federation, killed at random instants.")
    options.add_argument("--kills", type=int, default=KILLS, help=f"of all kinds together (default {KILLS})")
    options.add_argument("--freeze-share", type=float, default=0.0, help="of them that are SIGSTOP (default 0)")
    options.add_argument("--seed", type=int, default=1, help="of the instants (default 1)")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """Runs one after the other, until there were so many kills; the last run ends undisturbed."""
    random.seed(arguments.seed)
    kills = sized(arguments, smallest=1, quick=5, whole=arguments.kills)
    began, runs = time.monotonic(), 0
    with federation() as here:
        here.freeze_share = arguments.freeze_share
        here.pause = sized(arguments, smallest=1.0, quick=LONGEST_PAUSE, whole=LONGEST_PAUSE)
        while here.kills.total() < kills:
            here.carry_out(kills)
            runs += 1
            say(f"run {runs}: {here.kills.total()} kills; wrong {here.wrong}, unfinished {here.unfinished}")
    return report(here, runs, time.monotonic() - began)


@contextlib.contextmanager
def federation() -> Iterator[Everything]:
    """All of it, started."""
    with tempfile.TemporaryDirectory(prefix="fedcore-chaos-") as name:
        folder = Path(name)
        made = provision(
            folder / "fed", name="chaos", clients=CLIENTS, now=datetime.now(UTC), hosts=["127.0.0.1"],
            port=free_port(), policy=Policy.own(QUORUM, allow_differencing=True, max_releases=100_000),
        )  # fmt: skip
        kit = OperatorKit.load(made.operator)
        headers = {"Authorization": f"Bearer {kit.token}", "Content-Type": "application/json"}
        verify = tls_context(kit.ca_file)
        with (
            ChildProcesses(folder / "logs", quiet_environment()) as group,
            httpx.Client(base_url=made.server_url, verify=verify, headers=headers, timeout=30, trust_env=False) as http,
        ):
            here = Everything(made=made, group=group, folder=folder, http=http)
            here.start_all()
            yield here


def report(here: Everything, runs: int, seconds: float) -> Report:
    """The figures."""
    return Report(
        benchmark="chaos_everything",
        figures=(
            Figure(name="kills", value=here.kills.total(), unit="count", aim=KILLS, at_least=True),
            Figure(name="unfinished", value=len(here.unfinished), unit="count", aim=0),
            Figure(name="other_models", value=len(here.wrong), unit="count", aim=0),
        ),
        tables=(
            Table(
                title="SIGKILL and SIGSTOP at random instants",
                header=("what", "kills"),
                rows=tuple((what, str(number)) for what, number in sorted(here.kills.items())),
            ),
        ),
        notes=(
            f"{runs} runs, {here.exchanges} sums, {here.failed} attempts that failed and were repeated, {here.dropped} "
            f"clients dropped from one, {here.given_up} runs given up since the server was killed twice before they "
            f"came any further, in {seconds:.0f} s",
            *here.unfinished,
            *here.wrong,
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
