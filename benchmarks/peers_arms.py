"""What the arms of `peers.py` share, and the two that need nothing but this environment: fedcore and Flower.

An arm is one framework with its server and its clients as real processes, TLS on, the clients behind a relay that
counts bytes. All run the same app, which adds one constant to every parameter and says when. A round lasts from the
median client's beginning of its work to the same in the next round: everything lies in between once, whatever a
framework calls a round.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final, Protocol

from benchmarks.common import APPS, quiet_environment
from benchmarks.live import LiveFederation, wait_for_clients
from benchmarks.peers_relay import HOST, CountingRelay, Watch
from client_app.operator.client import OperatorClient
from fedcore.comparison.local_federation import FEDCORE, LocalFederation, free_port
from fedcore.errors import EnvironmentFailure, RunFailed
from fedcore.federation import OperatorKit
from fedcore.system.workers.child_processes import ChildProcesses

PLAIN, SECURE = "plain", "secure"
START_SECONDS = 180.0
LAST_LINES = 15
_POLL_SECONDS = 0.2
_BEGINS = re.compile(r"local work begins at (\d+\.\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run: a model of `parameters` float32 elements, plain or secure."""

    kind: str
    parameters: int
    rounds: int
    clients: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run. seconds: of each round. up, down: bytes of one client in a round. Peaks: bytes of the server's processes
    and of one client's.
    """

    seconds: tuple[float, ...]
    up: float
    down: float
    server_peak: int
    client_peak: int


class Arm(Protocol):
    """One framework with all its processes up."""

    def run(self, job: Job) -> Measured:
        """Run to the end; raises EnvironmentFailure, with the last lines of what it said, where that fails."""
        ...


class Opener(Protocol):
    """Starts a framework in an empty folder, and ends all of it with the block."""

    def __call__(self, folder: Path, *, clients: int) -> contextlib.AbstractContextManager[Arm]: ...


def measured(job: Job, begins: Sequence[Sequence[float]], watch: Watch, *, before: int = 0) -> Measured:
    """begins: for each client, when its work began in each round, in seconds of the wall clock. before: rounds of the
    run before these.

    Raises EnvironmentFailure if a client missed a round or the run had but one: then there is nothing to measure.
    """
    if len(begins) != job.clients or any(len(times) != job.rounds for times in begins) or job.rounds < 2:
        counts = ", ".join(str(len(times)) for times in begins)
        raise EnvironmentFailure(
            f"the clients were to work in {job.rounds} rounds each, at least 2; they did in {counts}"
        )
    starts = [median(times) for times in zip(*begins, strict=True)]
    # A download lies before a beginning, and of a few rounds chance would decide which: all of them count.
    up, down = watch.bytes_up(starts[0], starts[-1]), watch.bytes_down()
    return Measured(
        seconds=tuple(after - before for before, after in pairwise(starts)),
        up=up / (job.rounds - 1) / job.clients,
        down=down / (before + job.rounds) / job.clients,
        server_peak=watch.server_peak,
        client_peak=watch.client_peak,
    )


class WorkLog:
    """When each client's work began, from the logs of its processes; `since` leaves out what earlier runs wrote."""

    def __init__(self, logs: Sequence[Path]) -> None:
        self._logs = logs
        self._seen = [len(self._times(log)) for log in logs]

    def since(self) -> list[list[float]]:
        """For each log the times that came since this was made."""
        return [self._times(log)[seen:] for log, seen in zip(self._logs, self._seen, strict=True)]

    @staticmethod
    def _times(log: Path) -> list[float]:
        return [float(found) for found in _BEGINS.findall(log.read_text(encoding="utf-8", errors="replace"))]


def wait_for(condition: Callable[[], bool], what: str, group: ChildProcesses, seconds: float = START_SECONDS) -> None:
    """Until it holds; raises EnvironmentFailure if a process ends before, or it takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        group.check()
        if time.monotonic() > deadline:
            raise EnvironmentFailure(f"{what} did not come about within {seconds:g} s")
        time.sleep(_POLL_SECONDS)


def answers(port: int) -> bool:
    """Whether somebody listens there."""
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1.0):
        return True
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """A federation of fedcore: server, agents, operator."""

    federation: LiveFederation
    client: int
    relay: CountingRelay
    logs: tuple[Path, ...]

    def run(self, job: Job) -> Measured:
        """Submit as an operator does, and follow to the end."""
        work = WorkLog(self.logs)
        with Watch(server=self.federation.server_pid, client=self.client, relay=self.relay) as watch:
            try:
                self.federation.run(
                    # The first round has wider fields, so it goes before those that are measured.
                    run_config={"parameters": job.parameters, "num-server-rounds": job.rounds + 1},
                    settings={"aggregation": job.kind},
                )
            except RunFailed as error:
                raise EnvironmentFailure(str(error)) from error
        return measured(job, [times[1:] for times in work.since()], watch, before=1)


@contextlib.contextmanager
def ours(folder: Path, *, clients: int) -> Iterator[Ours]:
    """The server on a port of its own behind the relay, which listens where the kits say."""
    federation = LocalFederation.create(folder / "federation", clients=clients, allow_plain=True)
    port = free_port()
    with (
        CountingRelay(port, federation.port) as relay,
        ChildProcesses(folder / "logs", quiet_environment()) as group,
    ):
        words: list[str | Path] = ["server", "--federation", federation.folder, "--port", str(port)]
        server = group.start("server", [*FEDCORE, *words])
        names = list(federation.client_names())
        started = [
            group.start(
                name, [*FEDCORE, "client", "--kit", federation.folder / "clients" / name, "--app", APPS / "noop"]
            )
            for name in names
        ]
        kit = OperatorKit.load(federation.operator)
        wait_for_clients(kit, group, clients)
        with OperatorClient(kit) as operator:
            live = LiveFederation(
                app=APPS / "noop",
                clients=clients,
                server_pid=server.pid,
                group=group,
                operator=operator,
                operator_folder=federation.operator,
            )
            logs = tuple(folder / "logs" / f"{name}.log" for name in names)
            yield Ours(federation=live, client=started[0].pid, relay=relay, logs=logs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flower:
    """A SuperLink and its SuperNodes. environment: for `flwr run`."""

    group: ChildProcesses
    folder: Path
    server: int
    client: int
    relay: CountingRelay
    names: tuple[str, ...]
    environment: dict[str, str]

    def run(self, job: Job) -> Measured:
        """`flwr run` to its end. Plain: the app that ours runs; secure: the same work under Flower's SecAgg+."""
        app = APPS / ("noop" if job.kind == PLAIN else "secagg_plus")
        config = f"num-server-rounds={job.rounds} min-nodes={job.clients} parameters={job.parameters}"
        work = WorkLog([self.folder / "logs" / f"{name}.log" for name in self.names])
        words: list[str | Path] = [flower_script("flwr"), "run", app, "local", "--stream", "--run-config", config]
        with Watch(server=self.server, client=self.client, relay=self.relay) as watch:
            cli = self.group.start("run", words)
            try:
                # It ends when the run has ended; a run that fails says so in the log alone.
                while cli.poll() is None:
                    self.group.check()
                    time.sleep(_POLL_SECONDS)
            finally:
                self.group.stop("run")
        try:
            return measured(job, work.since(), watch)
        except EnvironmentFailure as error:
            tail = self.group.tail("superlink", lines=LAST_LINES)
            raise EnvironmentFailure(f"{error}; the end of the SuperLink's log:\n{tail}") from error


_STARTED_BY_FLOWER: Final = ("flower-superexec", "flwr-serverapp", "flwr-clientapp")


@contextlib.contextmanager
def flower(folder: Path, *, clients: int) -> Iterator[Flower]:
    """With the certificate of a fedcore federation: TLS to the SuperLink, as to our server."""
    for name in _STARTED_BY_FLOWER:  # it waits for ever for what it cannot start
        flower_script(name)
    made = LocalFederation.create(folder / "federation", clients=2)
    certificates = made.folder / "server"
    port = free_port()
    with CountingRelay(port, made.port) as relay:
        environment = flower_environment(folder, certificates / "ca.crt", f"localhost:{port}")
        with ChildProcesses(folder / "logs", environment) as group:
            link: list[str | Path] = [
                flower_script("flower-superlink"),
                "--port",
                str(port),
                "--disable-runtime-dependency-installation",
            ]
            for option, name in (("ca-certfile", "ca.crt"), ("certfile", "server.crt"), ("keyfile", "server.key")):
                link += [f"--ssl-{option}", str(certificates / name)]
            server = group.start("superlink", link)
            wait_for(lambda: answers(port), "a SuperLink that listens", group)
            names = tuple(f"supernode-{number}" for number in range(clients))
            nodes = [
                group.start(name, _supernode(number, clients, relay.port, certificates / "ca.crt"))
                for number, name in enumerate(names)
            ]
            log = folder / "logs" / "superlink.log"
            wait_for(
                lambda: log.read_text(encoding="utf-8", errors="replace").count("Activated node_id") == clients,
                "a connection of every SuperNode",
                group,
            )
            yield Flower(
                group=group,
                folder=folder,
                server=server.pid,
                client=nodes[0].pid,
                relay=relay,
                names=names,
                environment=environment,
            )


def _supernode(number: int, clients: int, port: int, ca: Path) -> list[str | Path]:
    words: list[str | Path] = ["--superlink", f"localhost:{port}", "--port", str(free_port()), "--root-certificates"]
    return [
        flower_script("flower-supernode"),
        *words,
        ca,
        "--node-config",
        f"partition-id={number} num-partitions={clients}",
    ]


def flower_environment(folder: Path, ca: Path, address: str) -> dict[str, str]:
    """Nobody is called, and a waiting task is looked for five times a second instead of once."""
    home = folder / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink.local]\naddress = "{address}"\nroot-certificates = "{ca}"\n',
        encoding="utf-8",
    )
    return {
        **quiet_environment(),
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        # Its processes start others by name.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


def flower_script(name: str) -> Path:
    """A command of this environment; raises EnvironmentFailure if it is missing."""
    beside = Path(sys.executable).parent / name
    if beside.exists():
        return beside
    if found := shutil.which(name):
        return Path(found)
    raise EnvironmentFailure(f"there is no command {name} in this environment: install flwr 1.41")
