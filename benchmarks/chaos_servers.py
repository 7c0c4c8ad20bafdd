"""The processes that the kill harness kills: servers, and the ServerApp that runs below the one that leads.

A fork server has imported for them what takes a start most of its time; what runs is `fedcore server` itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing.process
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from fedcore.errors import EnvironmentFailure
from tests.support.chaos_faults import become
from tests.support.forked import Made
from tests.support.forking import CONTEXT

START_SECONDS = 300.0
APP_MODULE = "server_app.runs.app.main"


@dataclass(slots=True)
class Server:
    """One server of a federation. options: words for `fedcore server`. fault: the name of a planted one."""

    name: str
    folder: Path
    options: tuple[str, ...]
    fault: str = ""
    started: float = 0.0
    starts: int = 0
    clock_offset: float = 0.0
    """Seconds by which its clock is ahead."""
    _process: multiprocessing.process.BaseProcess | None = field(default=None, repr=False)

    def start(self) -> None:
        """Start it; returns at once."""
        self.starts += 1
        self._ready.unlink(missing_ok=True)
        command = ["fedcore", "server", *self.options, "--ready-file", str(self._ready)]
        self.set_clock(self.clock_offset)
        arguments = (command, self._log, self.fault, str(self._clock))
        self._process = CONTEXT.Process(target=become, args=arguments)
        self._process.start()  # the first one starts the fork server, too
        self.started = time.monotonic()

    async def ready(self) -> None:
        """Until it listens; raises EnvironmentFailure if it ends, or does not come up."""
        assert self._process is not None, "start it first"
        while not self._ready.exists():
            if not self._process.is_alive() or time.monotonic() > self.started + START_SECONDS:
                raise EnvironmentFailure(f"{self.name} does not start:\n{self._end_of_log()}")
            await asyncio.sleep(0.02)

    def set_clock(self, offset: float) -> None:
        """Set its clock, so many seconds ahead of the right time, while it runs or before it starts."""
        self.clock_offset = offset
        fresh = self._clock.with_suffix(".new")
        fresh.write_text(str(offset), encoding="ascii")
        fresh.replace(self._clock)

    def upgrade(self) -> None:
        """`fedcore server upgrade`, while it is stopped; blocks. Raises EnvironmentFailure if that fails."""
        command = ["fedcore", "server", "upgrade", *self.data_options]
        process = CONTEXT.Process(target=become, args=(command, self._log, ""))
        process.start()
        process.join(START_SECONDS)
        if process.exitcode != 0:
            raise EnvironmentFailure(f"{self.name} is not upgraded: status {process.exitcode}")

    @property
    def data_options(self) -> tuple[str, ...]:
        """Which federation it serves, and where its data are: words for its other commands."""
        pairs = zip(self.options[::2], self.options[1::2], strict=True)
        return tuple(word for pair in pairs if pair[0] in ("--federation", "--data-dir") for word in pair)

    def kill(self) -> None:
        """SIGKILL to the process alone."""
        assert self._process is not None, "start it first"
        self._process.kill()
        self._process.join()

    def stop(self) -> None:
        """End it as its owner would."""
        if self._process is not None and self._process.is_alive():
            self._process.terminate()
            self._process.join(10)
            self._process.kill()

    def send(self, what: signal.Signals) -> None:
        """A signal to the process alone, if it lives."""
        if self._process is not None and self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, what)

    def signal_app(self, what: signal.Signals) -> bool:
        """A signal to the ServerApp's process, if one runs below this server; whether there was one."""
        assert self._process is not None
        for pid in psutil.pids():
            made = Made.of(pid)
            if made is not None and made.by == self._process.pid and APP_MODULE in made.words:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, what)
                    return True
        return False

    def _end_of_log(self) -> str:
        return Path(self._log).read_text(encoding="utf-8")[-2000:]

    @property
    def _log(self) -> str:
        return str(self.folder / f"{self.name}.log")

    @property
    def _clock(self) -> Path:
        return self.folder / f"{self.name}.clock"

    @property
    def _ready(self) -> Path:
        return self.folder / f"{self.name}.ready"
