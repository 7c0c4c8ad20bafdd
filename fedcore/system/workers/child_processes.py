"""Child processes that run commands, each with a log file of its own, and end with this process."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from fedcore.errors import EnvironmentFailure
from fedcore.system.workers.failures import exit_description
from fedcore.system.workers.starting import die_with_parent, kill_group

STOP_SECONDS: Final = 10.0


@dataclass(slots=True)
class ChildProcesses:
    """Child processes that end with this one, whatever happens to it; each writes to a log file of its own.

    Use as a context manager: leaving it ends all of them, politely first.
    """

    logs: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    _children: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, name: str, command: Sequence[str | Path], *, piped: bool = False) -> subprocess.Popen[str]:
        """Start a command; its standard output goes to the log as well, unless `piped` hands it to the caller."""
        with (self.logs / f"{name}.log").open("a", encoding="utf-8") as log:
            child = subprocess.Popen(  # noqa: S603
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else log,
                stderr=log,
                text=True,
                env={**os.environ, **self.environment},
                start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the others in order
                preexec_fn=die_with_parent,  # noqa: PLW1509
            )
        self._children[name] = child
        return child

    @property
    def living(self) -> list[str]:
        """The names of the children that have not ended."""
        return [name for name, child in self._children.items() if child.poll() is None]

    @property
    def pids(self) -> list[int]:
        """Of the children that have not ended."""
        return [child.pid for child in self._children.values() if child.poll() is None]

    def check(self, *, but: subprocess.Popen[str] | None = None) -> None:
        """Raise EnvironmentFailure, with the end of its log, for a child other than `but` that ended with an error."""
        for name, child in self._children.items():
            if child is not but and child.poll():
                raise EnvironmentFailure(
                    f"{name} {exit_description(child.returncode)}; the end of {self.logs / name}.log:\n"
                    f"{self.tail(name)}",
                    check="child-ended",
                )

    def tail(self, name: str, lines: int = 8) -> str:
        """The last lines of a child's log."""
        text = (self.logs / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def kill(self, name: str) -> None:
        """SIGKILL to one child and its own children; `check` does not miss it."""
        child = self._children.pop(name)
        kill_group(child.pid)
        child.wait()
        _close(child)

    def stop(self, *names: str) -> None:
        """End the named children, or all: SIGTERM, then SIGKILL to the groups of those that stay."""
        children = [self._children.pop(name) for name in names or tuple(self._children)]
        living = [child for child in children if child.poll() is None]
        for child in living:
            child.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for child in living:
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                kill_group(child.pid)
                child.wait()
        for child in children:
            _close(child)


def _close(child: subprocess.Popen[str]) -> None:
    if child.stdout is not None:
        child.stdout.close()
