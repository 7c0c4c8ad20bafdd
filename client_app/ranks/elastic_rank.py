"""The process of one rank under torchrun, for a client of several machines.

Rank 0 hears its agent over a Unix-domain socket, with the lines of `client_app.ranks.rank`, and hands the tasks on
through the store (`client_app.ranks.rendezvous`). The model goes from machine 0 to one rank of each other machine by
broadcast, into a file there. A failure on any rank reaches all of them at once, also those that wait in a collective:
a thread of each watches the store. All end then, and torchrun starts all of them again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from torch import distributed

from client_app.ranks.group import SOCKET
from client_app.ranks.messages import TO_RANK, Done, Failure, Greeting, LocalAnswer, RankTask, ToRank
from client_app.ranks.rank import end, load, received, reporting, run
from client_app.ranks.rendezvous import Position, Rendezvous
from fedcore.errors import AppError, ConfigurationError, WorkerDied
from fedcore.system import process_group
from fedcore.system.json_lines import BlockingConnection

if TYPE_CHECKING:
    from fedcore.flower.clientside import ClientRunner

_CHUNK: Final = 1 << 24
_PARENT_SECONDS: Final = 0.5


def main() -> None:
    """Serve tasks until the agent or torchrun ends, or any rank fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--node-rank", type=int, required=True, help="which machine this is")
    parser.add_argument("--app", type=Path, required=True, help="the Flower app on this machine")
    parser.add_argument("--folder", type=Path, required=True, help="private folder of this machine's agent")
    options = parser.parse_args()
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    rendezvous = Rendezvous.join()
    try:
        position = rendezvous.find_position(options.node_rank)
    except ConfigurationError as error:
        sys.exit(str(error))
    position.to_environment()
    agent = _call(options.folder / SOCKET, rendezvous.clone()) if position.rank == 0 else None
    rendezvous.when_failed(position, _teller(agent), end)
    try:
        _serve(rendezvous, position, agent, options)
    except BaseException as error:
        rendezvous.report(error, position.rank)
    threading.Event().wait()  # the thread that watches for failures ends this process


def _end_with(parent: int) -> None:
    """Torchrun starts every rank in a session of its own, so that nothing else ends one when torchrun is killed."""
    while os.getppid() == parent:
        time.sleep(_PARENT_SECONDS)
    end()


def _call(path: Path, rendezvous: Rendezvous) -> BlockingConnection[ToRank]:
    """Connect to the agent; when it hangs up, all ranks end."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))

    def hung_up() -> None:
        rendezvous.report(WorkerDied("the agent ended the ranks"), 0)

    return BlockingConnection(connection, TO_RANK, on_close=hung_up)


def _teller(agent: BlockingConnection[ToRank] | None) -> Callable[[Failure], None] | None:
    if agent is None:
        return None

    def tell(failure: Failure) -> None:
        with contextlib.suppress(OSError):  # it hung up first
            agent.send(failure)

    return tell


def _serve(
    rendezvous: Rendezvous, position: Position, agent: BlockingConnection[ToRank] | None, options: argparse.Namespace
) -> None:
    """Load the app and run tasks, one after another; raises what the app raises."""
    if agent is not None:
        rendezvous.post("greeting", received(agent, Greeting))
    greeting = rendezvous.read("greeting", Greeting)
    process_group.join(
        rendezvous.store,
        rank=position.rank,
        world_size=position.world_size,
        local_rank=position.local_rank,
        local_world_size=position.nodes[position.node],
    )
    runner, ready = load(greeting.model_copy(update={"app": str(options.app)}))
    if ready.app_sha256 != greeting.app_sha256:
        raise AppError(f"machine {position.node} has another app in {options.app} than machine 0")
    heads = distributed.new_group(list(position.heads), backend="gloo")
    models = _Models(rendezvous, position, options.folder, heads, engine_hands_out=runner.hands_model_out)
    others = range(1, position.world_size)
    rendezvous.mark(f"ready/{position.rank}")
    if agent is not None:
        rendezvous.wait_for(*(f"ready/{rank}" for rank in others))
        agent.send(ready)
    number = 0
    while True:
        number += 1
        if agent is None:
            request = rendezvous.read(f"task/{number}", RankTask)
            run(runner, position.rank, request.model_copy(update={"model": models.fetch(number, request)}))
            rendezvous.mark(f"done/{number}/{position.rank}")
        else:
            request = received(agent, RankTask)
            with reporting(agent):
                answer = _run_on_all(rendezvous, runner, models, number, request, position)
            agent.send(answer)


def _run_on_all(
    rendezvous: Rendezvous, runner: ClientRunner, models: _Models, number: int, request: RankTask, position: Position
) -> LocalAnswer | Done:
    """Rank 0's part of a task; over when all ranks have done theirs."""
    task, done = f"task/{number}", [f"done/{number}/{rank}" for rank in range(1, position.world_size)]
    size = Path(request.model).stat().st_size if request.model else 0
    rendezvous.post(task, request.model_copy(update={"model_bytes": size}))
    models.send(request)
    answer = run(runner, position.rank, request)
    rendezvous.wait_for(*done)
    rendezvous.forget([task, *done])
    return answer


@dataclass(frozen=True, slots=True)
class _Models:
    """The global model as a file on every machine.

    heads: a gloo group of the first rank of each.
    engine_hands_out: whether the app's engine does that with a model; it does not with the records of a plain exchange.
    """

    rendezvous: Rendezvous
    position: Position
    folder: Path
    heads: distributed.ProcessGroup
    engine_hands_out: bool

    def send(self, request: RankTask) -> None:
        """On rank 0: broadcast the file."""
        if request.model and self._broadcasts(request):
            size = Path(request.model).stat().st_size
            content = torch.from_file(request.model, shared=False, size=size, dtype=torch.uint8)
            for start in range(0, size, _CHUNK):
                distributed.broadcast(content[start : start + _CHUNK], src=0, group=self.heads)

    def fetch(self, number: int, request: RankTask) -> str | None:
        """Path of the model on this machine, once it is there; the one of the task before is removed."""
        if request.model is None or self.position.node == 0:
            return request.model
        if not self._broadcasts(request):
            return None
        path, there = self.folder / f"global-{number}.safetensors", f"model/{number}/{self.position.node}"
        if self.position.local_rank == 0:
            self._receive(path, request.model_bytes)
            self.rendezvous.mark(there)
            for old in set(self.folder.glob("global-*.safetensors")) - {path}:
                old.unlink()
        else:
            self.rendezvous.wait_for(there)
        return str(path)

    def _broadcasts(self, request: RankTask) -> bool:
        return request.task.aggregation == "plain" or not self.engine_hands_out

    def _receive(self, path: Path, size: int) -> None:
        with path.open("wb") as file:
            for start in range(0, size, _CHUNK):
                chunk = torch.empty(min(_CHUNK, size - start), dtype=torch.uint8)
                distributed.broadcast(chunk, src=0, group=self.heads)
                file.write(chunk.numpy().data)


if __name__ == "__main__":
    main()
