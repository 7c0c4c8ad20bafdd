"""The server's side of a ServerApp process: start it, talk to it, read what it prints, end it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, Self

from fedcore.errors import WorkerDied
from fedcore.system.concurrency import end
from fedcore.system.files import make_private_folder
from fedcore.system.json_lines import AsyncConnection, printed_lines
from fedcore.system.left_files import remove_left
from fedcore.system.sandbox.sandbox import Rules, Sandbox, clean_environment, named_paths
from fedcore.system.workers.failures import exit_description
from fedcore.system.workers.starting import start_process
from fedcore.wire.base import Message
from server_app.runs.app.messages import FROM_APP, FromApp
from server_app.runs.files.run_files import ANSWERS, APP_FOLDER

OnLine = Callable[[str], None]
MAX_LINES: Final = 20_000
TERM_SECONDS: Final = 3.0
LINES_SECONDS: Final = 10.0
_NO_MORE: Final = Rules()
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class AppKilled(WorkerDied):
    """A signal ended the ServerApp's process: its code may be right, so it is worth another start."""


class AppConnection(Protocol):
    """A running ServerApp, as the orchestrator of a run sees it."""

    async def send(self, message: Message) -> None:
        """Send one message."""

    async def receive(self) -> FromApp:
        """Wait for one message; raises WorkerDied when the app ends without a word."""

    async def ended(self) -> WorkerDied:
        """Wait until the process has ended; the error says how."""

    async def stop(self) -> None:
        """End it, if it runs; afterwards `on_line` has had all its lines."""


class AppProcess:
    """A ServerApp in a process group and a sandbox of its own.

    private
        Its folder for temporary files.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        connection: AsyncConnection[FromApp],
        on_line: OnLine,
        private: Path,
    ) -> None:
        self._private = private
        self._process = process
        self._connection = connection
        lines = _Lines(on_line)
        outputs = [stream for stream in (process.stdout, process.stderr) if stream is not None]
        self._readers = [asyncio.create_task(lines.read(stream)) for stream in outputs]

    @classmethod
    async def start(cls, folder: Path, on_line: OnLine, rules: Rules = _NO_MORE) -> Self:
        """Start the process with `folder` as its working directory, the only one to keep files in.

        It also reads the app, what the exchanges give, and what `rules` add.
        """
        answers = folder.parent / ANSWERS
        answers.mkdir(mode=0o700, exist_ok=True)
        private = make_private_folder()
        try:
            # Without this, the order of a set of texts is another in every process.
            environment = {**clean_environment(rules, private), "PYTHONHASHSEED": "0"}
            sandbox = Sandbox(
                read=(folder.parent / APP_FOLDER, answers, *rules.read, *named_paths(environment)),
                write=(folder, private),
                confined=rules.confined,
                account=rules.account,
            )
            process, connection = await start_process(
                "server_app.runs.app.main", expected=FROM_APP, environment=environment, sandbox=sandbox, folder=folder
            )
        except BaseException:
            remove_left(private)
            raise
        return cls(process, connection, on_line, private)

    @property
    def pid(self) -> int:
        """Of the process, and of its group."""
        return self._process.pid

    async def send(self, message: Message) -> None:
        """Send one message."""
        with contextlib.suppress(ConnectionError):  # `receive` reports the end
            await self._connection.send(message)

    async def receive(self) -> FromApp:
        """Wait for one message; raises WorkerDied."""
        try:
            message = await self._connection.receive()
        except ValueError:
            raise WorkerDied("the ServerApp's process sent something it never should") from None
        except ConnectionError:
            message = None
        if message is not None:
            return message
        raise await self.ended()

    async def ended(self) -> WorkerDied:
        """Wait until the process has ended; the error says how."""
        status = await self._process.wait()
        kind = AppKilled if status < 0 else WorkerDied
        return kind(f"the ServerApp's process {exit_description(status)}, without an answer")

    def hang_up(self) -> None:
        """Close this end of the connection, as the end of this process would."""
        self._connection.hang_up()

    async def stop(self) -> None:
        """End the process and everything it started."""
        self.hang_up()
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(TERM_SECONDS):
                await self._process.wait()
        except TimeoutError:
            pass
        finally:
            self._signal(signal.SIGKILL)
        await self._process.wait()
        # What was printed last is still in the pipes; only something that left the group can keep them open.
        await end(*self._readers, within=LINES_SECONDS)
        await asyncio.to_thread(remove_left, self._private)

    def _signal(self, number: signal.Signals) -> None:
        # To the group, which outlives its leader while something that the app started is alive.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


class _Lines:
    """Hands over what the app prints, up to a number of lines."""

    def __init__(self, on_line: OnLine) -> None:
        self._on_line = on_line
        self._left = MAX_LINES

    async def read(self, stream: asyncio.StreamReader) -> None:
        async for line in printed_lines(stream):
            text = _COLOURS.sub("", line).rstrip()
            if text and self._left >= 0:
                self._on_line(text if self._left else "the ServerApp prints too much; the rest is left out")
                self._left -= 1
