"""Starting a worker process, and ending it with all that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence


def start_worker(
    module: str,
    *arguments: str,
    sockets: Sequence[int],
    environment: Mapping[str, str],
    output: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start `python -m module ARGUMENTS`, which finds the modules that this process finds.

    It leads a session of its own: Ctrl-C reaches this process alone, and `end_worker` ends what it has started too.

    Args:
        module: one of fedcore's.
        arguments: of its command line.
        sockets: descriptors that it inherits; it ends when the other end of the first is closed.
        environment: laid over that of this process.
        output: subprocess.PIPE to read what it prints; None if it prints where this process does.
    """
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return subprocess.Popen(  # noqa: S603 - a module of fedcore
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=tuple(sockets),
        env={**os.environ, "PYTHONPATH": path, **environment},
        start_new_session=True,
    )


def end_worker(process: subprocess.Popen[bytes]) -> None:
    """End a worker and its process group now; does nothing for one that was waited for."""
    if process.returncode is None:
        kill_group(process.pid)
        process.wait()


def kill_group(leader: int) -> None:
    """SIGKILL to a process group; does nothing if there is none."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
