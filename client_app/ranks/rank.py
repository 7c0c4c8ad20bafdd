"""The process of one rank: it joins the others, loads the owner's ClientApp once, and serves one task after another.

Started by `client_app.ranks.supervisor` as `python -m client_app.ranks.rank`. It speaks JSON lines over a socket that
it inherits, never over standard output, because user code prints. Models travel as safetensors files, by path, and are
mapped into memory. Between tasks it waits in a read. When the agent goes away, however it ends, the socket closes and
the rank ends itself with all processes that the app started.

    agent -> rank   {"app": ..., "client_id": ..., "node_config": {...}, "engine": {...},
                     "local_folder": PATH or null}                                       once
    rank -> agent   {"ready": true, "app_sha256": ...} or {"failed": KIND, "text": ...}
    agent -> rank   {"task": {...}, "model": PATH or null, "out": PATH}                      repeated
    rank -> agent   {"examples": ..., "metrics": {...}, "trained": true} or {"failed": KIND, "text": ...}

Every rank gets every task. Rank 0 alone writes the new model to `out`, for which the others may have to hand over their
parts, and tells what came out; they answer {"done": true}.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from client_app.ranks.failures import describe
from fedcore.system.json_lines import Line, RankEnd

if TYPE_CHECKING:
    from fedcore.flower.clientside import ClientRunner

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"


def main() -> None:
    """Serve tasks until the agent closes the socket."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channel", type=int, required=True, help="descriptor of the socket to the agent")
    parser.add_argument("--store", type=int, help="descriptor of the socket that rank 0's store listens on")
    options = parser.parse_args()
    agent = RankEnd(socket.socket(fileno=options.channel), gone=end)
    rank = int(os.environ["RANK"])
    greeting = agent.receive()
    try:
        _join(options.store)
        runner, ready = load(greeting)
    except BaseException as error:
        agent.send(describe(error))
        leave(1)
    agent.send(ready)
    while True:
        request = agent.receive()
        try:
            answer = run(runner, rank, request)
        except BaseException as error:  # an app may raise SystemExit too, and the next task finds a warm rank
            answer = describe(error)
        agent.send(answer)


def _join(listening: int | None) -> None:
    """Meet the other ranks, where there are any; a single process leaves torch.distributed alone."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        return
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from fedcore.system import process_group

    rank = int(os.environ["RANK"])
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        world_size,
        is_master=rank == 0,
        master_listen_fd=listening,
    )
    process_group.join(store, rank=rank, world_size=world_size, local_rank=rank, local_world_size=world_size)


def load(greeting: Line) -> tuple[ClientRunner, Line]:
    """Import the app; raises what that raises. The line says which app it was."""
    from fedcore.config import EngineConfig
    from fedcore.flower.app import FlowerApp
    from fedcore.flower.bundle import AppBundle
    from fedcore.flower.clientside import ClientRunner

    folder = Path(greeting["app"])
    sha256 = AppBundle.from_folder(folder).sha256
    runner = ClientRunner(
        app=FlowerApp.load(folder),
        client_id=greeting["client_id"],
        node_config=greeting["node_config"],
        local_folder=Path(greeting["local_folder"]) if greeting["local_folder"] else None,
        engine=EngineConfig.from_mapping(greeting["engine"], ranks=int(os.environ["WORLD_SIZE"])),
    )
    return runner, {"ready": True, "app_sha256": sha256}


def run(runner: ClientRunner, rank: int, request: Line) -> Line:
    """Run one task; the answer to it. Raises what the app raises, AppError, or StorageFull."""
    from fedcore.state import ModelState
    from fedcore.wire import Task

    model = ModelState.open(Path(request["model"])) if request["model"] else None
    result = runner.run(Task.model_validate(request["task"]), model)
    result.save(Path(request["out"]) if rank == 0 else None)
    if rank != 0:
        return {"done": True}
    return {"examples": result.examples, "metrics": dict(result.metrics), "trained": result.trained}


def end() -> None:
    """End this process and its group; only its own group, should somebody have started it by hand."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def leave(status: int) -> NoReturn:
    """Exit without the interpreter's teardown, in which threads of a process group may abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
