"""The process that a pool's workers are forked from: it imports what they need, once for all of them.

    python -m fedcore.simulation.workers.fork_server BEGIN

BEGIN is a `Begin` as JSON. Torch and an app take seconds to import, and hundreds of MB, which forked processes share.
If the app's modules have started threads or opened a device, a fork would leave workers with locks that nobody
releases; each is then a process that imports for itself.

It is not the fork server of `multiprocessing`: that is one for the whole process, so the next app, or the same one
after an edit, would get the modules of the first; and its children print where this process does, past a notebook's
cell.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from fedcore.flower.output import quiet_flower
from fedcore.simulation.workers.pool_messages import Begin, WorkerEnded
from fedcore.simulation.workers.pool_worker import Worker, end, serve


def main() -> None:
    """Start the workers, and tell how each of them ends."""
    quiet_flower()
    begin = Begin.model_validate_json(sys.argv[1])
    if len(begin.connections) == 1:
        with socket.socket(fileno=begin.control):
            serve(begin, begin.connections[0])
    try:
        Worker.of(begin)
        if "torch" in sys.modules:
            from fedcore.training.eager import load_no_compiler

            load_no_compiler()
    except BaseException:  # noqa: S110 - each worker says it
        pass
    forks = _may_fork()
    workers = {_start(begin, index, forks=forks): index for index in range(len(begin.connections))}
    for descriptor in begin.connections:
        os.close(descriptor)
    _tell_endings(workers, begin.control)


def _may_fork() -> bool:
    """Whether this process has one thread, and no device."""
    tasks = Path("/proc/self/task")
    one = len(list(tasks.iterdir())) == 1 if tasks.is_dir() else threading.active_count() == 1
    torch = sys.modules.get("torch")
    return one and not (torch is not None and torch.cuda.is_initialized())


def _start(begin: Begin, index: int, *, forks: bool) -> int:
    """Start one worker; its process id."""
    descriptor = begin.connections[index]
    if not forks:
        alone = begin.model_copy(update={"connections": [descriptor]})
        command = [sys.executable, *sys.orig_argv[1:-1], alone.model_dump_json()]
        return subprocess.Popen(command, pass_fds=(descriptor, begin.control)).pid  # noqa: S603 - this very module
    child = os.fork()
    if child:
        return child
    for other in (*begin.connections, begin.control):
        if other != descriptor:
            os.close(other)
    _reseed_numpy()
    try:
        serve(begin, descriptor)
    finally:
        os._exit(1)


def _reseed_numpy() -> None:
    """Or all workers would draw the same from NumPy's generator; Python's own sees to it itself."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _tell_endings(workers: Mapping[int, int], control: int) -> None:
    """Until there are no workers any more."""
    with socket.socket(fileno=control) as connection:
        for _ in workers:
            child, status = os.wait()
            ended = WorkerEnded(worker=workers[child], status=os.waitstatus_to_exitcode(status))
            with contextlib.suppress(OSError):
                connection.sendall(ended.model_dump_json().encode() + b"\n")
    end()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()
