"""Real processes on this machine: one server and its clients, as `fedcore server` and `fedcore client` start them."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from fedcore.errors import EnvironmentFailure
from fedcore.federation import Policy, provision
from fedcore.system.workers.child_processes import ChildProcesses
from fedcore.wire.base import Scalar

FEDCORE = (sys.executable, "-m", "fedcore")
START_SECONDS = 600.0
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_UNPRIVILEGED, PORTS, _TRIES = 1024, 8192, 20
"""The first port that anybody may use, and below the kernel's own: how many are drawn from, and how often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFederation:
    """A private federation on loopback: authority, roster, CA and kits, freshly made."""

    folder: Path
    clients: int
    port: int

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        clients: int,
        allow_plain: bool = False,
        name: str = "comparison",
        policy: Policy | None = None,
    ) -> Self:
        """Provision into `folder`, which must not exist, on a port that is free now and stays so until it is used.

        All clients are one's own (`Policy.own`), unless a policy is given.

        Args:
            allow_plain: the server may read their updates, too.
            policy: of all clients, in place of that.
        """
        port = free_port()
        policy = policy or Policy.own(clients, allow_plain=allow_plain)
        provision(folder, name=name, clients=clients, now=datetime.now(UTC), port=port, policy=policy)
        return cls(folder=folder, clients=clients, port=port)

    @property
    def operator(self) -> Path:
        """The operator's kit."""
        return self.folder / "operator"

    def start_server(self, group: ChildProcesses) -> None:
        """Start the one server process."""
        group.start("server", [*FEDCORE, "server", "--federation", self.folder])

    def start_clients(
        self, group: ChildProcesses, app: Path, options: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """Start every client process, each with its own kit; `options` are more words for some of them, by name."""
        for name in self.client_names():
            kit = self.folder / "clients" / name
            group.start(name, [*FEDCORE, "client", "--kit", kit, "--app", app, *(options or {}).get(name, ())])

    def wait_connected(self, group: ChildProcesses) -> None:
        """Wait until every client is connected; raises EnvironmentFailure if a process ends, or after too long."""
        deadline = time.monotonic() + START_SECONDS
        while not all("connected" in group.tail(name) for name in self.client_names()):
            group.check()
            if time.monotonic() > deadline:
                raise EnvironmentFailure(f"not all clients connected in {START_SECONDS:g} s; see {group.logs}")
            time.sleep(0.1)

    def client_names(self) -> Iterator[str]:
        """The names that provisioning gives."""
        return (f"client-{i}" for i in range(1, self.clients + 1))


def run_command(
    app: Path, operator: Path, *, out: Path, run_config: Mapping[str, Scalar], settings: Mapping[str, Scalar]
) -> list[str]:
    """The `fedcore run` command that submits `app` and prints its events as JSON lines; `out` is replaced."""
    words = [*FEDCORE, "run", str(app), "--operator", str(operator), "--out", str(out), "--force", "--json"]
    for key, value in run_config.items():
        words += ["--run-config", f"{key}={_toml(value)}"]
    for key, value in settings.items():
        words += ["--set", f"{key}={_toml(value)}"]
    return words


def _toml(value: Scalar) -> str:
    """As TOML text, whose strings are those of JSON."""
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def free_port(host: str = "127.0.0.1", *, reserved: Path = PORT_RANGE, count: int = PORTS) -> int:
    """A port of an address of this machine that nobody uses at the moment.

    It lies below those that the kernel hands out by itself, if there are such (ip(7), ip_local_port_range): else it
    might be another connection's by the time that the server listens. A program that seeds `random` does not decide
    which.

    Args:
        host: the address.
        reserved: the file in which the kernel says which ports it hands out.
        count: how many ports below those are drawn from.
    """
    lowest = int(reserved.read_text(encoding="ascii").split()[0]) if reserved.exists() else _UNPRIVILEGED
    below = range(max(_UNPRIVILEGED, lowest - count), lowest)
    for port in (*random.SystemRandom().sample(below, min(_TRIES, len(below))), 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            free: int = probe.getsockname()[1]
            return free
    raise EnvironmentFailure(f"no port is free on {host}")
