"""Processes that the fork server makes, as `fedcore`'s own are made: a tenth of a second, not seconds of imports.

`ForkedGroup` and `start_process` stand in for `fedcore.system.workers.child_processes.ChildProcesses` and
`fedcore.system.workers.starting.start_process`. What they start is what these start: the same program with the same
words, in a session of its own, with the same environment and outputs, and user code in the same sandbox. All that it
starts in turn is forked too, ranks and ServerApps among it. That programs start by themselves is tested with real ones.

The kernel tells of a forked process only what it told of the fork server: `Made` says what became of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, parent_process
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType
from typing import IO, Any, TypeVar

from pydantic import TypeAdapter

from fedcore.system.json_lines import AsyncConnection
from fedcore.system.sandbox.sandbox import Sandbox
from fedcore.system.workers import child_processes
from fedcore.system.workers.child_processes import ChildProcesses
from fedcore.system.workers.starting import start_as_usual

from .forking import CONTEXT

Received = TypeVar("Received")
MARK = "TORCH_TEST_MARK"
"""By its first letters one of the variables that user code gets too."""
_MEMORY = "/memfd:"
_LONGEST_NAME = 240


# --- what a forked process is ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Made:
    """What a forked process says of itself, in the name of a file in memory that it keeps open.

    mark: the value of `MARK` in its environment. by: who asked for it. words: its program's words.
    """

    mark: str
    by: int
    words: str

    def keep(self) -> None:
        """For as long as this process lives."""
        os.memfd_create(f"{self.mark} {self.by} {self.words}"[:_LONGEST_NAME])

    @classmethod
    def of(cls, pid: int) -> Made | None:
        """What a process says; None for one that was not forked, or has ended."""
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError, ValueError):
                    name = str(descriptor.readlink())
                    if name.startswith(_MEMORY):
                        mark, by, words = name.removeprefix(_MEMORY).removesuffix(" (deleted)").split(" ", 2)
                        return cls(mark, int(by), words)
        return None


Output = str | socket.socket
"""Where a process writes: to the end of a file, or to a socket."""


def _settle(made: Made, environment: Mapping[str, str], folder: str, outputs: Sequence[Output]) -> None:
    """In the new process: be by itself, in this environment and folder, with these outputs."""
    start_as_usual()
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for descriptor, output in enumerate(("/dev/null", *outputs)):
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        os.dup2(os.open(output, flags, 0o600) if isinstance(output, str) else output.fileno(), descriptor)
    for output in outputs:
        if not isinstance(output, str):
            output.close()
    sys.stdout, sys.stderr = (
        open(number, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process lives
        for number in (1, 2)
    )
    made.keep()
    fork_from_here_on()


def fork_from_here_on() -> None:
    """What this process starts is forked by the server that made it, where it would begin with a server of its own."""
    from client_app.ranks import supervisor
    from fedcore.comparison import federation, local_federation
    from fedcore.flower.first_model import derive
    from server_app.runs.app import process as app_process

    # The standard library has no public way to say that a fork server runs already.
    vars(forkserver._forkserver)["ensure_running"] = lambda: None  # noqa: SLF001
    for module in (supervisor, app_process, derive):
        module.start_process = start_process  # type: ignore[attr-defined]
    for module in (federation, local_federation):
        vars(module)["ChildProcesses"] = ForkedGroup


# --- programs ----------------------------------------------------------------------------------------------------


class Forked:
    """What the tests and `ChildProcesses` ask of `subprocess.Popen`."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], outputs: Sequence[Output], folder: Path
    ) -> None:
        self.args = [str(word) for word in command]
        self.stdout: IO[str] | None = None
        made = Made(environment.get(MARK, ""), os.getpid(), " ".join(self.args))
        self._process: Any = CONTEXT.Process(
            target=_be_program, args=(made, self.args[1:], dict(environment), str(folder), tuple(outputs))
        )
        self._process.start()
        pid = self._process.pid
        assert pid is not None
        self.pid: int = pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        """Its exit status, once it has ended; minus the number of the signal that ended it."""
        status: int | None = self._process.exitcode
        return status

    def wait(self, timeout: float | None = None) -> int:
        """The same, when it has ended."""
        self._process.join(timeout)
        if (status := self.poll()) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal to the process alone."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkedGroup(ChildProcesses):
    """A group whose Python programs are forked; whatever else it starts is started."""

    def start(self, name: str, command: Sequence[str | Path], *, piped: bool = False) -> subprocess.Popen[str]:
        words = [str(word) for word in command]
        if words[0] != sys.executable:
            return ChildProcesses.start(self, name, words, piped=piped)
        log = str((self.logs / f"{name}.log").absolute())
        Path(log).touch()  # there from the start, like the log of a program that is started
        ours, theirs = socket.socketpair()
        with ours, theirs:
            outputs = (theirs if piped else log, log)
            child: Any = Forked(words, {**os.environ, **self.environment}, outputs, Path.cwd())
            if piped:
                child.stdout = ours.makefile("r", encoding="utf-8")
        self._children[name] = child
        running: subprocess.Popen[str] = child
        return running


def _be_program(
    made: Made, words: list[str], environment: dict[str, str], folder: str, outputs: tuple[Output, ...]
) -> None:
    """In the new process: `python WORDS`, until its parent ends."""
    _settle(made, environment, folder, outputs)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if words[0] == "-m":
        _, module, *arguments = words
        sys.argv = [module, *arguments]
        if module != "fedcore":
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            return
        from fedcore.cli.main import main

        main()
    else:
        sys.argv = words
        _run_file(Path(words[0]))


def _run_file(path: Path) -> None:
    """As the program; what processes of its own send back is of the module `__mp_main__` (multiprocessing.spawn)."""
    # For what the program imports by that name.
    child_processes.ChildProcesses = ForkedGroup  # type: ignore[misc]
    main = ModuleType("__main__")
    main.__file__ = str(path)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    exec(compile(path.read_bytes(), path, "exec"), main.__dict__)


def become(words: Sequence[str], folder: str, environment: Mapping[str, str], files: Sequence[int]) -> None:
    """In a process that was forked: be the command `fedcore` with these words.

    files: open descriptors for its input and its two outputs, which are closed.
    """
    for descriptor, file in enumerate(files):
        os.dup2(file, descriptor)
        os.close(file)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as long as the process lives; multiprocessing took it away
    # What stood here before may have been a file, of which a stream remembers that it can be sought in.
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["fedcore", *words]
    fork_from_here_on()
    from fedcore.cli.main import main

    main()


def _end_with_parent() -> None:
    """As the kernel ends a child of `ChildProcesses`."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


# --- processes with user code ------------------------------------------------------------------------------------


class _Running:
    """What is asked of `asyncio.subprocess.Process`."""

    def __init__(self, process: ForkServerProcess) -> None:
        assert process.pid is not None
        self.pid = process.pid
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None
        self._process = process
        self._status = 0
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(process.sentinel, self._end)

    async def wait(self) -> int:
        await self._ended.wait()
        return self._status

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._process.join()
        assert self._process.exitcode is not None
        self._status = self._process.exitcode
        self._process.close()
        self._ended.set()


async def start_process(
    module: str,
    *arguments: str,
    expected: TypeAdapter[Received],
    environment: Mapping[str, str],
    sandbox: Sandbox,
    folder: Path | None = None,
    sockets: Sequence[int] = (),
    stderr: int = asyncio.subprocess.PIPE,
) -> tuple[Any, AsyncConnection[Received]]:
    """In place of `fedcore.system.workers.starting.start_process`."""
    words = sandbox.arguments(module)
    made = Made(environment.get(MARK, ""), os.getpid(), f"-m {module}")
    with contextlib.ExitStack() as theirs:
        ours, connected = socket.socketpair()
        theirs.enter_context(connected)
        connection = await AsyncConnection.over(ours, expected)
        shown, printed = socket.socketpair()
        theirs.enter_context(printed)
        readers, outputs = [shown], [printed, printed]
        if stderr == asyncio.subprocess.PIPE:
            said, outputs[1] = socket.socketpair()
            theirs.enter_context(outputs[1])
            readers.append(said)
        inherited = {str(number): theirs.enter_context(socket.socket(fileno=os.dup(number))) for number in sockets}
        try:
            process: Any = CONTEXT.Process(
                target=_be_module,
                args=(made, words[2:], dict(environment), str(folder or Path.cwd()), outputs, connected, arguments,
                      inherited),
            )  # fmt: skip
            process.start()
            running = _Running(process)
            for one in readers:
                one.setblocking(False)
            # It leads a session of its own, and so can be ended with all that it starts.
            await asyncio.get_running_loop().sock_recv(shown, 1)
        except BaseException:
            connection.hang_up()
            for one in readers:
                one.close()
            raise
    streams = [await _stream(one) for one in readers]
    running.stdout, running.stderr = (*streams, None)[:2]
    return running, connection


async def _stream(connection: socket.socket) -> asyncio.StreamReader:
    """What comes over a socket, which is closed at its end."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), connection)
    return reader


def _be_module(
    made: Made,
    confined: list[str],
    environment: dict[str, str],
    folder: str,
    outputs: Sequence[socket.socket],
    connection: socket.socket,
    arguments: Sequence[str],
    inherited: Mapping[str, socket.socket],
) -> None:
    """In the new process: `python -P -s -B -m fedcore.system.sandbox.confined SANDBOX MODULE FD ...`."""
    printed, *_ = outputs
    _settle(made, environment, folder, [one.dup() for one in outputs])
    sys.dont_write_bytecode = True
    printed.sendall(b"\n")
    for output in set(outputs):
        output.close()
    told, module = confined
    Sandbox.from_json(told).enter()
    numbers = {name: str(one.detach()) for name, one in inherited.items()}
    sys.argv = [module, str(connection.detach()), *(numbers.get(word, word) for word in arguments)]
    sys.modules.pop(module, None)  # it is to run as the program
    runpy.run_module(module, run_name="__main__", alter_sys=True)
