"""The federations that a comparison runs in: server and clients stay, and serve one run after another."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from fedcore.compare.processes import LocalFederation, ProcessGroup, run_command
from fedcore.compare.results import Loss
from fedcore.compare.run import Kill, ModeRun, worker_name
from fedcore.errors import EnvironmentFailure
from fedcore.record import EventSink, RunRecord
from fedcore.wire import Scalar, is_training

START_SECONDS: Final = 120.0
IDLE_SECONDS: Final = 0.5
RUN: Final = "run"
KILL_SETTINGS: Final[Mapping[str, Scalar]] = {"liveness-seconds": 7.0, "join-seconds": 20.0}
"""A lost client is noticed, and missing ones are given up, sooner than by default: two heartbeats and a bit."""


@dataclass(slots=True)
class Federation:
    """One federation with secure policies and one whose owners allow plain updates, each started when first needed.

    They serve runs of the same app with the same number of clients. Use as a context manager: leaving it ends all
    processes. folder: for kits, logs and the servers' data.
    """

    folder: Path
    _warm: dict[bool, _Deployment] = field(default_factory=dict)
    _started: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for plain in tuple(self._warm):
            self._close(plain)

    def carry_out(self, run: ModeRun, emit: EventSink) -> tuple[RunRecord, tuple[Loss, ...]]:
        """Submit one run and follow it to its end; the model lies in the run's folder where it finished.

        A federation that lost a process is not used again. Raises EnvironmentFailure where a process ends that was not
        to be killed.
        """
        plain = run.mode.kind == "federated-plain"
        whole = False
        try:
            if plain not in self._warm:
                self._started += 1
                self._warm[plain] = _Deployment.start(self.folder / f"federation-{self._started}", run, plain=plain)
            record, losses = self._warm[plain].carry_out(run, emit)
            whole = record.status == "finished" and run.kill is None
        finally:
            if not whole:
                self._close(plain)
        return record, losses

    def _close(self, plain: bool) -> None:
        if (deployment := self._warm.pop(plain, None)) is not None:
            deployment.group.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deployment:
    """A server and clients that run."""

    local: LocalFederation
    group: ProcessGroup

    @classmethod
    def start(cls, folder: Path, run: ModeRun, *, plain: bool) -> Self:
        """Start all processes and wait until every client is connected."""
        local = LocalFederation.create(folder / "kits", clients=run.sites, allow_plain=plain)
        group = ProcessGroup(folder / "logs", run.environment()).__enter__()
        try:
            local.start_server(group)
            local.start_clients(group, run.app.folder)
            deadline = time.monotonic() + START_SECONDS
            while not all("connected" in group.tail(name) for name in local.client_names()):
                group.check()
                if time.monotonic() > deadline:
                    raise EnvironmentFailure(f"not all clients connected in {START_SECONDS:g} s; see {group.logs}")
                time.sleep(0.1)
        except BaseException:
            group.stop()
            raise
        return cls(local=local, group=group)

    def carry_out(self, run: ModeRun, emit: EventSink) -> tuple[RunRecord, tuple[Loss, ...]]:
        command = run_command(
            run.app.folder,
            self.local.operator,
            out=run.folder / "model.safetensors",
            run_config=run.config,
            settings=mode_settings(run),
        )
        watch = _Watch(group=self.group, kill=run.kill, sites=run.sites)

        def show(kind: str, data: Mapping[str, Any]) -> None:
            emit(kind, data)
            watch.see(kind, data)

        child = self.group.start(RUN, command, piped=True)
        try:
            record = follow(self.group, child, show)
        finally:
            self.group.stop(RUN)
        return record, watch.losses(record)


def mode_settings(run: ModeRun) -> dict[str, Scalar]:
    """The settings of [tool.fedcore] as one of the federated modes has them.

    All clients take part in every exchange. A run that is to lose one goes on with the others, where their policies
    allow it. Differential privacy is for its own mode alone.
    """
    secure = run.mode.kind != "federated-plain"
    settings = {**run.settings, "min-clients": run.sites, "aggregation": "secure" if secure else "plain"}
    if run.kill is not None:
        settings |= {"min-clients": max(1 + secure, run.sites - 1), **KILL_SETTINGS}
    return settings if run.mode.kind == "federated-dp" else {**settings, "dp-epsilon": 0.0, "dp-noise-multiplier": 0.0}


@dataclass(slots=True, kw_only=True)
class _Watch:
    """Kills a client when it is time, and notes how long the others took to go on without it."""

    group: ProcessGroup
    kill: Kill | None
    sites: int
    clock: Callable[[], float] = time.monotonic
    _killed_at: float | None = None
    _noticed: str = ""
    _seconds: float = 0.0

    def see(self, kind: str, data: Mapping[str, Any]) -> None:
        """Take an event of the run."""
        if self.kill is None or self._noticed:
            return
        name = worker_name(self.kill.site)
        if self._killed_at is None:
            if _is_due(kind, data, self.kill.round):
                self.group.kill(name)
                self._killed_at = self.clock()
        elif kind == "dropped" and data["client"] == name:
            self._note(f"dropped in stage {data['stage']} ({data['reason']})")
        elif kind == "exchange" and name not in data["cohort"]:
            self._note("not asked again")
        elif kind == "ended":
            self._note("not missed before the end")

    def losses(self, record: RunRecord) -> tuple[Loss, ...]:
        """Nobody, or the one that was killed."""
        if self.kill is None or self._killed_at is None:
            return ()
        left = f"the run went on with {self.sites - 1} of {self.sites} clients"
        outcome = left if record.status == "finished" else f"the run failed: {record.reason}"
        return (
            Loss(
                worker=worker_name(self.kill.site),
                round=self.kill.round,
                consequence=f"{self._noticed}; {outcome}",
                seconds=self._seconds,
            ),
        )

    def _note(self, noticed: str) -> None:
        self._noticed, self._seconds = noticed, self.clock() - (self._killed_at or 0.0)


def _is_due(kind: str, data: Mapping[str, Any], kill_round: int) -> bool:
    """After the evaluation of the round, or with the next round where there is none."""
    if kind == "exchange-done":
        return data["server_round"] == kill_round and not is_training(data["message_type"])
    return kind == "exchange" and int(data["server_round"]) > kill_round


def follow(group: ProcessGroup, child: subprocess.Popen[str], emit: EventSink) -> RunRecord:
    """Read a run's events until it ends; another process of the group that ends with an error ends the run too."""
    record = RunRecord()
    for line in _lines(child, idle=lambda: group.check(but=child)):
        event = json.loads(line)
        if "kind" in event:
            record.add(event["kind"], event["data"], event["seconds"])
            emit(event["kind"], event["data"])
    child.wait()
    if not record.status:
        group.check()
    return record


def _lines(child: subprocess.Popen[str], *, idle: Callable[[], None]) -> Iterator[str]:
    """The lines that a child prints, until it ends; `idle` is called while there are none."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        with contextlib.suppress(ValueError):  # closed, because nobody waits for more
            for line in child.stdout or ():
                lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            idle()
            continue
        if not line:
            return
        yield line
