"""The processes of a baseline: one for each worker, server or evaluator, forked from a server that has torch loaded.

A worker runs one function, which it imports; the arguments reach it as JSON, and its reports come back as JSON over a
pipe of its own. What it prints goes to a log file of its own. Workers end with the process that started them.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, NamedTuple, NoReturn, Self, TypeAlias

from pydantic import BaseModel, ConfigDict

from fedcore.comparison.measure.processor import own_seconds, seconds_of
from fedcore.errors import EnvironmentFailure, FedcoreError, RunFailed, UsageError
from fedcore.system.workers.calls import FunctionCall
from fedcore.system.workers.failures import exit_description
from fedcore.system.workers.starting import kill_group, start_as_usual

PRELOADED: Final = ("torch.distributed", "torch.nn.parallel", "fedcore.comparison.modes", "fedcore.training")
"""What the fork server imports before it forks: nothing that starts a thread, or opens a device."""

_STOP_SECONDS: Final = 10.0
_CONTEXT: Final = multiprocessing.get_context("forkserver")
# Before it starts; there is one for all runs of this process.
_CONTEXT.set_forkserver_preload(list(PRELOADED))


class WorkerReport(BaseModel):
    """What a worker tells the process that started it; every subclass has a name of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    _by_name: ClassVar[dict[str, type[WorkerReport]]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        WorkerReport._by_name[cls.__name__] = cls

    def encoded(self) -> bytes:
        """The name of the class and, after a line break, its fields as JSON."""
        return f"{type(self).__name__}\n{self.model_dump_json()}".encode()

    @staticmethod
    def decoded(message: bytes) -> WorkerReport:
        """The inverse of `encoded`."""
        name, _, fields = message.partition(b"\n")
        return WorkerReport._by_name[name.decode()].model_validate_json(fields)


class ProcessorTime(WorkerReport):
    """Seconds of the processor that a worker took, its own children included."""

    seconds: float


ReportSink: TypeAlias = Callable[[WorkerReport], None]


def ignore_report(report: WorkerReport) -> None:
    """A `ReportSink` for what does not count."""


class Ended(WorkerReport):
    """The last report of every worker.

    exitcode: negative for a signal.
    reason: empty if it returned.
    """

    exitcode: int
    reason: str = ""
    traceback: str = ""


class WorkerEvent(NamedTuple):
    """Which worker reported what."""

    name: str
    report: WorkerReport


@dataclass(slots=True)
class _RunningWorker:
    """A process that was started.

    connection: where its reports arrive.
    failure: how it says that it ended.
    """

    process: ForkServerProcess
    connection: Connection
    failure: Ended | None = None

    def received(self) -> Iterator[WorkerReport]:
        """What has arrived by now; stops for good where the other end is closed."""
        with contextlib.suppress(EOFError, OSError):
            while self.connection.poll():
                yield WorkerReport.decoded(self.connection.recv_bytes())
            return
        self.connection.close()

    def kill(self) -> None:
        """End the process and what it started, its data loaders among it."""
        assert self.process.pid is not None  # noqa: S101 - it was started
        kill_group(self.process.pid)
        self.process.kill()  # it may not lead a group yet

    def exit_report(self) -> Ended:
        code = self.process.exitcode or 0
        if self.failure is not None and code:
            return self.failure.model_copy(update={"exitcode": code})
        if not code:
            return Ended(exitcode=0)
        return Ended(exitcode=code, reason=exit_description(code))


@dataclass(slots=True)
class Workers:
    """The workers of one run. Use as a context manager: leaving it ends all of them.

    folder: its `logs` get one file for each worker.
    environment: laid over this process's own.
    processor_seconds: of each worker that has ended.
    """

    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    processor_seconds: dict[str, float] = field(default_factory=dict, init=False)
    _living: dict[str, _RunningWorker] = field(default_factory=dict)

    def __enter__(self) -> Self:
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def living(self) -> frozenset[str]:
        """Names of the workers whose end was not reported yet."""
        return frozenset(self._living)

    def start(self, name: str, target: Callable[..., object], *args: object) -> None:
        """Run `target(report, *args)` in a process of its own; what it gives to `report` comes out of `events` here.

        Args:
            name: of the worker and its log.
            target: a function of a module, with annotations.
            args: sent as JSON, by those annotations; a socket among them arrives as a socket.
        """
        if name in self._living:
            raise UsageError(f"worker {name} runs already")
        ours, theirs = _CONTEXT.Pipe(duplex=False)
        environment = {**os.environ, **self.environment}
        log = self.folder / "logs" / f"{name}.log"
        call = FunctionCall.of(target, *args)
        process = _CONTEXT.Process(
            target=_main,
            args=(theirs, str(log), json.dumps(environment), call.function, call.arguments, call.sockets),
            name=name,
        )
        try:
            process.start()
        except BaseException:
            ours.close()
            raise
        finally:
            # The worker's end has to be the only one, or nobody would see it close.
            theirs.close()
        self._living[name] = _RunningWorker(process=process, connection=ours)

    def events(self, *, silence: float) -> Iterator[WorkerEvent]:
        """What the workers report, until the last of them has ended; each one's last report is `Ended`.

        Workers may be started and killed meanwhile. Raises EnvironmentFailure if none of them reported anything for
        `silence` seconds.
        """
        deadline = time.monotonic() + silence
        while self._living:
            by_handle: dict[Any, str] = {}
            for name, worker in self._living.items():
                by_handle[worker.process.sentinel] = name
                if not worker.connection.closed:
                    by_handle[worker.connection] = name
            ready = wait(list(by_handle), max(0.0, deadline - time.monotonic()))
            if not ready:
                names = ", ".join(sorted(self._living))
                raise EnvironmentFailure(
                    f"nothing heard of {names} for {silence:.0f} s; see {self.folder / 'logs'}", check="silence"
                )
            for name in dict.fromkeys(by_handle[handle] for handle in ready):
                yield from self._take(name)
            deadline = time.monotonic() + silence

    def call(self, name: str, target: Callable[..., object], *args: object, silence: float) -> list[WorkerReport]:
        """What one worker reports from its start to its end, while no other one lives.

        Raises RunFailed with its reason where it fails, EnvironmentFailure if it is silent for too long.
        """
        if self._living:
            raise UsageError(f"{', '.join(sorted(self._living))} still work")
        self.start(name, target, *args)
        *reports, last = (event.report for event in self.events(silence=silence))
        if isinstance(last, Ended) and last.exitcode:
            raise RunFailed(f"{name}: {last.reason}; see {self.folder / 'logs' / name}.log")
        return reports

    def kill(self, name: str) -> None:
        """SIGKILL to a worker and what it started; nothing happens where it has ended."""
        if name in self._living:
            self._note_time(name)
            self._living[name].kill()

    def stop(self) -> None:
        """End all workers now. Their files are replaced atomically, so none needs time to finish one."""
        for name, worker in self._living.items():
            self._note_time(name)
            worker.kill()
        deadline = time.monotonic() + _STOP_SECONDS
        for worker in self._living.values():
            worker.process.join(max(0.0, deadline - time.monotonic()))
            worker.connection.close()
        self._living.clear()

    def _note_time(self, name: str) -> None:
        """Of a worker that is about to be killed, and cannot say itself what it took."""
        pid = self._living[name].process.pid
        self.processor_seconds.setdefault(name, seconds_of([pid] if pid is not None else []))

    def _take(self, name: str) -> Iterator[WorkerEvent]:
        worker = self._living.get(name)
        if worker is None:  # stopped while an event before this one was handled
            return
        over = bool(wait([worker.process.sentinel], 0))
        if over:
            # A data loader that outlived it would keep a message that was cut short open for ever.
            worker.kill()
        if not worker.connection.closed:
            for report in worker.received():
                if isinstance(report, Ended):
                    worker.failure = report
                elif isinstance(report, ProcessorTime):
                    self.processor_seconds[name] = report.seconds
                else:
                    yield WorkerEvent(name, report)
        if over and self._living.pop(name, None) is not None:
            worker.process.join()
            worker.connection.close()
            yield WorkerEvent(name, worker.exit_report())


def _main(
    connection: Connection,
    log: str,
    environment: str,
    function: str,
    arguments: str,
    sockets: tuple[socket.socket, ...],
) -> NoReturn:
    """The whole life of a worker, in its process; `multiprocessing` pickles these texts and descriptors."""
    start_as_usual()
    os.setsid()  # Ctrl-C reaches the process that started this one, which then ends all
    threading.Thread(target=_end_with_starter, daemon=True).start()
    _print_to(log)
    _take_environment(json.loads(environment))
    status = 0
    try:
        FunctionCall(function, arguments, sockets).execute(_report_to(connection))
        _report_to(connection)(ProcessorTime(seconds=own_seconds()))
    except BaseException as error:  # the app's code may raise anything, SystemExit too
        traceback.print_exc()
        reason = str(error) if isinstance(error, FedcoreError) else f"{type(error).__name__}: {error}"
        _report_to(connection)(Ended(exitcode=1, reason=reason, traceback=traceback.format_exc()))
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Without the interpreter's teardown, in which the threads of a process group may abort.
    os._exit(status)


def _report_to(connection: Connection) -> ReportSink:
    lock = threading.Lock()

    def report(one: WorkerReport) -> None:
        with lock:
            connection.send_bytes(one.encoded())

    return report


def _end_with_starter() -> None:
    """End this process, and what it started, with the process that uses the fork server.

    The kernel's own signal would not do: the fork server, its parent here, stays as long as one of its children does.
    """
    starter = multiprocessing.parent_process()
    assert starter is not None  # noqa: S101 - this is a worker
    starter.join()
    os.killpg(0, signal.SIGKILL)


def _print_to(log: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _take_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    threads = environment.get("OMP_NUM_THREADS")
    if threads and "torch" in sys.modules:
        # It was imported in the fork server, with that one's environment.
        sys.modules["torch"].set_num_threads(int(threads))
