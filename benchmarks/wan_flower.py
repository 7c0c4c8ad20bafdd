"""Flower over the lines of `wan.py`: a SuperLink and SuperNodes in network namespaces, with the app that ours run.

TLS to the SuperLink, SuperNodes that are let in unknown, and otherwise the settings of `peers_arms.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.common import APPS
from benchmarks.peers_arms import LAST_LINES, WorkLog, flower_environment, flower_script, wait_for
from benchmarks.relay import Node
from fedcore.errors import EnvironmentFailure
from fedcore.federation import Policy, provision
from fedcore.system.workers.child_processes import ChildProcesses

PORT = 9092
START_SECONDS = 300.0
_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowerSites:
    """A SuperLink and SuperNodes that know each other."""

    server: Node
    names: tuple[str, ...]
    folder: Path
    group: ChildProcesses

    def run(self, parameters: int, *, rounds: int) -> tuple[float, ...]:
        """Seconds of each of so many rounds, from the median site's beginning of its work to the same in the next.

        Raises EnvironmentFailure.
        """
        config = f"num-server-rounds={rounds + 1} min-nodes={len(self.names)} parameters={parameters}"
        work = WorkLog([self.folder / "logs" / f"{name}.log" for name in self.names])
        words: list[str | Path] = ["run", APPS / "noop", "local", "--stream", "--run-config", config]
        child = self.group.start("run", [*self.server.command(), flower_script("flwr"), *words])
        try:
            while child.poll() is None:
                self.group.check()
                time.sleep(_POLL_SECONDS)
        finally:
            self.group.stop("run")
        begins = work.since()
        if any(len(times) != rounds + 1 for times in begins):
            counts = ", ".join(str(len(times)) for times in begins)
            tail = self.group.tail("superlink", lines=LAST_LINES)
            raise EnvironmentFailure(f"of {rounds + 1} rounds the sites began {counts}; the SuperLink said:\n{tail}")
        return tuple(after - before for before, after in pairwise(map(median, zip(*begins, strict=True))))


@contextmanager
def flower_sites(server: Node, clients: Sequence[Node], folder: Path) -> Iterator[FlowerSites]:
    """All processes; every SuperNode has joined when the block begins."""
    made = provision(
        folder / "federation",
        name="wan",
        clients=len(clients),
        now=datetime.now(UTC),
        hosts=[server.address, "127.0.0.1"],  # the ServerApp's process is a client as well
        port=PORT,
        policy=Policy.own(len(clients)),
    )
    certificates, address = made.server, f"{server.address}:{PORT}"
    with ChildProcesses(folder / "logs", flower_environment(folder, certificates / "ca.crt", address)) as group:
        link: list[str | Path] = ["--host", "0.0.0.0", "--port", str(PORT), "--disable-runtime-dependency-installation"]
        for option, name in (("ca-certfile", "ca.crt"), ("certfile", "server.crt"), ("keyfile", "server.key")):
            link += [f"--ssl-{option}", certificates / name]
        group.start("superlink", [*server.command(), flower_script("flower-superlink"), *link])
        names = tuple(f"supernode-{number}" for number in range(len(clients)))
        for number, (node, name) in enumerate(zip(clients, names, strict=True)):
            words: list[str | Path] = ["--superlink", address, "--root-certificates", certificates / "ca.crt"]
            config = f"partition-id={number} num-partitions={len(clients)}"
            supernode = [flower_script("flower-supernode"), *words, "--node-config", config]
            group.start(name, [*node.command(), *supernode])
        log = folder / "logs" / "superlink.log"
        wait_for(
            lambda: log.read_text(encoding="utf-8", errors="replace").count("Activated node_id") == len(clients),
            "a connection of every SuperNode",
            group,
            START_SECONDS,
        )
        yield FlowerSites(server=server, names=names, folder=folder, group=group)
