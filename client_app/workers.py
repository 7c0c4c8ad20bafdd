"""The agent's side of the worker process: start it, give it tasks, end it, notice when it ends by itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from client_app.output import Output
from fedcore.errors import AppError, FedcoreError, StorageFull, WorkerDied
from fedcore.wire import MetricValue, Scalar, Task

MAX_LINE: Final = 64 << 20
START_SECONDS: Final = 180.0
_LAST_WORDS_SECONDS: Final = 1.0


class AppFailed(AppError):
    """The app's own code raised. `traceback` is for the client's own log and never leaves the machine."""

    def __init__(self, traceback: str) -> None:
        lines = traceback.strip().splitlines() or ["an error without a text"]
        super().__init__(f"the app raised {lines[-1]}")
        self.traceback = traceback


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalAnswer:
    """What one task gave. trained: whether the new model was written to the path that was asked for."""

    examples: int
    metrics: Mapping[str, MetricValue]
    trained: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Which app a worker runs, as whom, and on which data.

    app_sha256: hash of the app that the agent agreed to run; a worker that loads something else is not used.
    data_dir: where `fedcore.data` looks for files, or None for what the environment says.
    """

    app: Path
    app_sha256: str
    client_id: int
    node_config: Mapping[str, Scalar]
    data_dir: Path | None = None


@dataclass(slots=True, kw_only=True)
class _Process:
    """A running worker and the two streams to it."""

    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    printing: asyncio.Task[None]


@dataclass(slots=True)
class Worker:
    """One warm worker; after it dies or is ended, the next call starts a fresh one.

    The process leads a group of its own: Ctrl-C on the terminal reaches the agent alone, and ending the worker
    ends what the app started.
    """

    settings: WorkerSettings
    output: Output
    _running: _Process | None = field(default=None, init=False)

    @property
    def pid(self) -> int | None:
        """Process id of the running worker."""
        return self._running.process.pid if self._running else None

    async def start(self) -> None:
        """Start the process and load the app, unless it runs already.

        Raises AppError when the app cannot be loaded or was changed since the agent started, WorkerDied when the
        process ends or hangs.
        """
        if self._running is not None and self._running.process.returncode is None:
            return
        await self.stop()
        self._running = await self._spawn()
        greeting = {
            "app": str(self.settings.app),
            "client_id": self.settings.client_id,
            "node_config": dict(self.settings.node_config),
        }
        try:
            answer = await self._request(greeting, START_SECONDS)
        except FedcoreError:
            await self.stop()
            raise
        if answer.get("app_sha256") != self.settings.app_sha256:
            await self.stop()
            raise AppError(
                f"the app in {self.settings.app} was changed while the agent ran; restart the agent to agree to it"
            )

    async def run(self, task: Task, model: Path | None, out: Path) -> LocalAnswer:
        """Run the ClientApp on one task, for at most `task.seconds`.

        Raises AppFailed, AppError (wrong records), StorageFull, or WorkerDied after a death or a timeout. When the
        caller is cancelled the worker is ended, since nothing else stops user code.
        """
        await self.start()
        request = {"task": task.model_dump(mode="json"), "model": str(model) if model else None, "out": str(out)}
        answer = await self._request(request, task.seconds)
        try:
            return LocalAnswer(
                examples=int(answer["examples"]), metrics=dict(answer["metrics"]), trained=bool(answer["trained"])
            )
        except (KeyError, TypeError, ValueError):
            await self.stop()
            raise WorkerDied("the worker gave an answer that makes no sense; the next task gets a fresh one") from None

    async def stop(self) -> None:
        """End the process and everything that it started."""
        running, self._running = self._running, None
        if running is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.process.pid, signal.SIGKILL)
        await running.process.wait()
        running.writer.close()
        with contextlib.suppress(OSError):
            await running.writer.wait_closed()
        # What was printed last is still in the pipe; a process that left the group may hold it open.
        await asyncio.wait([running.printing], timeout=_LAST_WORDS_SECONDS)
        running.printing.cancel()

    async def _spawn(self) -> _Process:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", "client_app.worker", "--channel", str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                env=self._environment(),
            )
        reader, writer = await asyncio.open_connection(sock=ours, limit=MAX_LINE)
        printing = asyncio.create_task(self._relay(process))
        return _Process(process=process, reader=reader, writer=writer, printing=printing)

    def _environment(self) -> dict[str, str]:
        changes = {"FLWR_TELEMETRY_ENABLED": "0", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        if self.settings.data_dir is not None:
            changes["FEDCORE_DATA"] = str(self.settings.data_dir)
        return {**os.environ, **changes}

    async def _relay(self, process: asyncio.subprocess.Process) -> None:
        """Show what the app prints; it stays on this machine."""
        assert process.stdout is not None  # noqa: S101 - it was started with a pipe
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:  # longer than the stream's limit, and dropped by it
                continue
            if not line:
                return
            if text := line.decode("utf-8", "replace").rstrip():
                self.output.info("app", text)

    async def _request(self, message: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        running = self._running
        assert running is not None  # noqa: S101 - every caller started it
        try:
            async with asyncio.timeout(seconds):
                running.writer.write(json.dumps(message).encode() + b"\n")
                await running.writer.drain()
                line = await running.reader.readline()
            if not line:
                raise WorkerDied(f"the worker ended without an answer ({await _ending(running)})")
            answer: dict[str, Any] = json.loads(line)
        except TimeoutError:
            await self.stop()
            raise WorkerDied(f"the worker gave no answer within {seconds:.0f} s and was ended") from None
        except (OSError, ValueError) as error:
            await self.stop()
            raise WorkerDied(f"the connection to the worker broke ({type(error).__name__})") from error
        except BaseException:
            await self.stop()
            raise
        if "failed" in answer:
            raise _failure(answer)
        return answer


async def _ending(running: _Process) -> str:
    """How the process ended, in words."""
    try:
        async with asyncio.timeout(5):
            code = await running.process.wait()
    except TimeoutError:
        return "it closed its connection"
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def _failure(answer: Mapping[str, Any]) -> FedcoreError:
    text = str(answer.get("text", ""))
    match answer["failed"]:
        case "storage-full":
            return StorageFull(text)
        case "wrong-records":
            return AppError(text)
        case _:
            return AppFailed(text)
