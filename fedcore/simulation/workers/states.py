"""What simulated clients keep between their tasks: in memory those that worked last, all others in files."""

from __future__ import annotations

import shutil
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from fedcore.flower.app import FlowerApp
from fedcore.flower.clientside import ClientRunner
from fedcore.flower.node.config import share_of_client
from fedcore.wire.base import Scalar

MOST_WARM: Final = 256
"""Runners of one process that stay in memory with the Contexts of their clients."""

_Version: TypeAlias = tuple[int, int] | None


@dataclass(slots=True, kw_only=True)
class Runners:
    """The clients of a simulation as one process runs them: any of them, and the same one again where it left off.

    clients
        How many the simulation has.
    folder
        Of the states of Contexts, a record file for each client that has one.
    shared
        Other processes run the same clients in turn, so each state is written after every task; else only that of a
        client which makes room for another.
    node
        The node config of each of them; None if each has its share of one data set.
    most
        How many stay in memory.
    aggregated_rounds
        The rounds of the last trainings that were in their sums.
    """

    app: FlowerApp
    clients: int
    folder: Path
    shared: bool
    node: Mapping[str, Scalar] | None = None
    most: int = MOST_WARM
    aggregated_rounds: dict[int, int] = field(default_factory=dict, init=False)
    _warm: OrderedDict[int, tuple[ClientRunner, _Version]] = field(default_factory=OrderedDict, init=False)

    @property
    def warm(self) -> int:
        """How many runners there are; the state of all other clients is in files."""
        return len(self._warm)

    def of(self, client: int) -> ClientRunner:
        """The runner of a client, with the Context as the client's last task left it."""
        file = self._file(client)
        version = _version(file)
        runner, known = self._warm.pop(client, (None, None))
        if runner is None or (self.shared and known != version):
            runner = self._made(client, file if version else None)
        self._warm[client] = runner, version
        runner.aggregated_round = self.aggregated_rounds.get(client, 0)
        if len(self._warm) > self.most:
            oldest, (oldest_runner, _) = self._warm.popitem(last=False)
            if not self.shared:
                oldest_runner.leave(self._file(oldest))
        return runner

    def done(self, client: int) -> None:
        """A task of the client has ended, however it did."""
        if self.shared:
            runner, _ = self._warm[client]
            file = self._file(client)
            runner.leave(file)
            self._warm[client] = runner, _version(file)

    def save(self, folder: Path, clients: Sequence[int]) -> list[int]:
        """Write the states of these clients into a folder, `CLIENT.state` each; returns who has one."""
        saved = []
        for client in clients:
            target, (runner, _) = folder / f"{client}.state", self._warm.get(client, (None, None))
            if runner is not None and not self.shared:
                runner.leave(target)
            elif self._file(client).exists():
                shutil.copyfile(self._file(client), target)
            saved += [client] if target.exists() else []
        return saved

    def restore(self, states: Mapping[int, Path]) -> None:
        """Let clients begin with these states; before any of them has run."""
        self._warm.clear()
        for client, file in states.items():
            shutil.copyfile(file, self._file(client))

    def _made(self, client: int, state: Path | None) -> ClientRunner:
        node = share_of_client(client, self.clients) if self.node is None else self.node
        return ClientRunner(app=self.app, client_id=client, node_config=node, began=state, durable=False)

    def _file(self, client: int) -> Path:
        return self.folder / f"{client}.state"


def _version(file: Path) -> _Version:
    """Tells one writing of a file from another: each is a new file that takes the place of the one before."""
    try:
        stat = file.stat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_mtime_ns
