"""The process of one rank: it joins the others, loads the owner's ClientApp once, and serves one task after another.

Started by `client_app.ranks.supervisor` as `python -m client_app.ranks.rank`. It speaks the messages of
`client_app.ranks.messages` over a socket that it inherits, never over standard output, because user code prints.
Between tasks it waits in a read. When the agent goes away, however it ends, the socket closes and the rank ends itself
with all processes that the app started.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from client_app.ranks.failures import describe
from client_app.ranks.group_size import needs_group
from client_app.ranks.messages import TO_RANK, Done, Greeting, LocalAnswer, Progress, RankTask, Ready, ToRank
from fedcore.errors import WorkerDied
from fedcore.system.json_lines import BlockingConnection
from fedcore.system.memory import set_aside
from fedcore.system.tracing import VARIABLE
from fedcore.system.workers.step_counter import STEPS

if TYPE_CHECKING:
    from fedcore.flower.clientside import ClientRunner

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
Kind = TypeVar("Kind", Greeting, RankTask)
REPORT_SECONDS: Final = 1.0


def main() -> None:
    """Serve tasks until the agent closes the socket."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("connection", type=int, help="descriptor of the socket to the agent")
    parser.add_argument("store", type=int, nargs="?", help="descriptor of the socket that rank 0's store listens on")
    options = parser.parse_args()
    agent = BlockingConnection(socket.socket(fileno=options.connection), TO_RANK, on_close=end)
    rank = int(os.environ["RANK"])
    try:
        greeting = received(agent, Greeting)
        _join(options.store, greeting)
        runner, ready = load(greeting)
    except BaseException as error:
        agent.send(describe(error, rank))
        leave(1)
    agent.send(ready)
    set_aside()
    while True:
        request = received(agent, RankTask)
        try:
            with reporting(agent):
                answer = run(runner, rank, request)
            agent.send(answer)
        except BaseException as error:  # an app may raise SystemExit too, and the next task finds a warm rank
            agent.send(describe(error, rank))


def _join(listening: int | None, greeting: Greeting) -> None:
    """Meet the other ranks, if there are any; a process that needs no group leaves torch.distributed alone."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        if needs_group(greeting.engine):
            from fedcore.system.process_group import join_alone

            join_alone()
        return
    from fedcore.system.process_group import join_on_this_machine

    rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
    join_on_this_machine(rank=rank, ranks=world_size, port=port, listening=listening)


def received(agent: BlockingConnection[ToRank], kind: type[Kind]) -> Kind:
    """The agent's next message, which is of that kind."""
    message = agent.receive()
    if not isinstance(message, kind):
        raise WorkerDied(f"the agent sent a {type(message).__name__}, not a {kind.__name__}")
    return message


def load(greeting: Greeting) -> tuple[ClientRunner, Ready]:
    """Import the app; raises what that raises. The message says which app it was."""
    from fedcore.flower.app import AppBundle, FlowerApp
    from fedcore.flower.clientside import ClientRunner
    from fedcore.run.engine_config import EngineConfig
    from fedcore.system.memory import limit_memory, why_no_gpu

    engine = EngineConfig.from_mapping(greeting.engine, ranks=int(os.environ["WORLD_SIZE"]))
    if engine.memory_share:
        limit_memory(engine.memory_share)  # whatever the app trains with
    folder = Path(greeting.app)
    sha256 = AppBundle.from_copy(folder).sha256
    runner = ClientRunner(
        app=FlowerApp.load(folder),
        client_id=greeting.client_id,
        node_config=greeting.node_config,
        local_folder=Path(greeting.local_folder) if greeting.local_folder else None,
        engine=engine,
    )
    if reason := why_no_gpu():
        sys.stderr.write(f"This machine has a GPU, and trains on the processor: {reason}\n")
    return runner, Ready(app_sha256=sha256)


def run(runner: ClientRunner, rank: int, request: RankTask) -> LocalAnswer | Done:
    """Run one task; the answer to it. Raises what the app raises, AppError, or StorageFull."""
    from fedcore.state import ModelState

    runner.aggregated_round = request.counted
    os.environ[VARIABLE] = request.traceparent
    if request.task.aggregation == "plain":
        return _answer(runner, rank, request)
    model = ModelState.open(Path(request.model)) if request.model else None
    result = runner.run(request.task, model)
    result.save(Path(request.out) if rank == 0 else None)
    if rank != 0:
        return Done()
    return LocalAnswer(examples=result.examples, metrics=dict(result.metrics), trained=result.trained)


@contextlib.contextmanager
def reporting(agent: BlockingConnection[ToRank]) -> Iterator[None]:
    """Tell the agent once a second how far this rank is; nothing of that comes after the context's end."""
    STEPS.reset()
    over = threading.Event()

    def report() -> None:
        while not over.wait(REPORT_SECONDS):
            with contextlib.suppress(OSError):  # the agent has gone, which ends this process anyway
                agent.send(Progress(steps=STEPS.steps, parts=STEPS.parts, in_loop=STEPS.in_loop))

    thread = threading.Thread(target=report, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _answer(runner: ClientRunner, rank: int, request: RankTask) -> LocalAnswer | Done:
    """Run one task of a plain exchange, whose message and reply are record files."""
    content = Path(request.model) if request.model else None
    answer = runner.answer(request.task, content, Path(request.out) if rank == 0 else None)
    if rank != 0:
        return Done()
    return LocalAnswer(
        examples=answer.examples or 0, metrics=dict(answer.metrics), trained=answer.error is None, error=answer.error
    )


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
