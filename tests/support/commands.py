"""`fedcore` commands in processes of a fork server, which has imported for them what takes a command most of its time.

For tests of many short commands; `support.deployment.fedcore` starts one as a person does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .deployment import ENVIRONMENT, PATIENCE, wait_until
from .forking import CONTEXT


def forked(*words: str | Path, seconds: float = PATIENCE) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    command = ["fedcore", *(str(word) for word in words)]
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = CONTEXT.Process(target=_become, args=(command, str(Path.cwd()), str(out), str(err)))
        process.start()
        process.join(seconds)
        status = process.exitcode
        if status is None:
            process.kill()
            process.join()
        process.close()
        said = [path.read_text(encoding="utf-8") for path in (out, err)]
    if status is None:
        raise subprocess.TimeoutExpired(command, seconds, *said)
    return subprocess.CompletedProcess(command, status, *said)


def killed_when(probe: Callable[[], Any], *words: str | Path) -> None:
    """Run one command until `probe` is true, and kill it then, unless it has ended."""
    command = ["fedcore", *(str(word) for word in words)]
    process = CONTEXT.Process(target=_become, args=(command, str(Path.cwd()), "/dev/null", "/dev/null"))
    process.start()
    try:
        wait_until(f"what {command} was to do", lambda: probe() or process.exitcode is not None)
    finally:
        process.kill()
        process.join()
        process.close()


def _become(command: list[str], folder: str, *outputs: str) -> None:
    """In the new process: be the command, with its words, its folder and its outputs."""
    for descriptor, path in enumerate(("/dev/null", *outputs)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), descriptor)
    os.chdir(folder)
    os.environ.update(ENVIRONMENT)
    sys.argv = command
    from fedcore.cli import main

    main()
