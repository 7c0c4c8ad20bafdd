"""`fedcore` commands in processes of a fork server, which has imported for them what takes a command most of its time.

For tests of many short commands; `support.deployment.fedcore` starts one as a person does.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .deployment import ENVIRONMENT, PATIENCE, wait_until
from .forked import become
from .forking import CONTEXT


def forked(
    *words: str | Path, seconds: float = PATIENCE, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end, in `folder` or where this process is."""
    with tempfile.TemporaryDirectory() as outputs:
        out, err = Path(outputs, "out"), Path(outputs, "err")
        process = _begin(words, folder or Path.cwd(), out, err)
        process.join(seconds)
        status = process.exitcode
        if status is None:
            process.kill()
            process.join()
        process.close()
        said = [path.read_text(encoding="utf-8") for path in (out, err)]
    command = ["fedcore", *map(str, words)]
    if status is None:
        raise subprocess.TimeoutExpired(command, seconds, *said)
    return subprocess.CompletedProcess(command, status, *said)


def killed_when(probe: Callable[[], Any], *words: str | Path) -> None:
    """Run one command until `probe` is true, and kill it then, unless it has ended."""
    process = _begin(words, Path.cwd(), Path(os.devnull), Path(os.devnull))
    try:
        wait_until(f"what {words} was to do", lambda: probe() or process.exitcode is not None)
    finally:
        process.kill()
        process.join()
        process.close()


def _begin(words: Sequence[str | Path], folder: Path, *outputs: Path) -> Any:
    environment = {**os.environ, **ENVIRONMENT}
    command = ([str(word) for word in words], str(folder), environment, [str(path) for path in outputs])
    process = CONTEXT.Process(target=_become, args=command)
    process.start()
    return process


def _become(words: list[str], folder: str, environment: dict[str, str], outputs: list[str]) -> None:
    """In the new process."""
    files = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600) for path in (os.devnull, *outputs)]
    become(words, folder, environment, files)
