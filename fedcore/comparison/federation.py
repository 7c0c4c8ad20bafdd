"""Federations of a comparison, whose server and clients stay and serve one run after another.

What has to be known of a run beyond its record is read off its events while they come: who fetched which model, and
when the client that the run is to lose has to be killed.
"""

from __future__ import annotations

import contextlib
import json
import queue
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from fedcore.comparison.local_federation import LocalFederation, run_command
from fedcore.comparison.measure.processor import seconds_of
from fedcore.comparison.results import LostWorker
from fedcore.comparison.run import MODEL_FILE, PlannedRun, worker_name
from fedcore.comparison.run_observers import ClientKiller, ModelVersions, SentModels
from fedcore.errors import RunFailed
from fedcore.federation import Policy
from fedcore.flower.apps.progress_protocol import (
    PACE_PREFIX,
    PROGRESS_VARIABLE,
    VALIDATION_VARIABLE,
    EvaluationProgress,
    ProgressLine,
    TrainingProgress,
    parse_progress,
)
from fedcore.flower.grid.training_means import FOLDER
from fedcore.monitoring.output_paths import OutputPaths
from fedcore.monitoring.run_record import RunRecord
from fedcore.run.settings import ROUNDS_KEY
from fedcore.system.workers.child_processes import ChildProcesses
from fedcore.wire.base import Scalar
from fedcore.wire.events import EventSink, ExchangeStarted, Recorded, RunEvent, ignore
from fedcore.wire.tasks import is_training

JOIN_SECONDS: Final = 20.0
"""How long a run that is to lose a client waits for it to come back."""
_RUN: Final = "run"
_IDLE_SECONDS: Final = 0.5
_WITHOUT_PRIVACY: Final[Mapping[str, Scalar]] = {"dp-epsilon": 0.0, "dp-noise-multiplier": 0.0}


TrainedExamples: TypeAlias = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FederatedOutcome:
    """A run that is over.

    models: for each exchange of the record, the SHA-256 of the model that its clients were given, "" for none.
    fetched: for each of them, who fetched that model in it; the others had it from the exchange before.
    examples: client -> round -> examples that it trained on, repetitions counted.
    tested: likewise, what the round's model gave on its test part. Both {} for apps that do not tell.
    results: what the run left in its results.json.
    versions: of a buffered run, its models by their numbers, as many of them as were caught.
    start_seconds: until its first training began; None if none did.
    processor_seconds: that the server, the clients and what they started took for it.
    """

    record: RunRecord
    losses: tuple[LostWorker, ...]
    models: tuple[str, ...]
    fetched: tuple[frozenset[str], ...]
    examples: TrainedExamples = field(default_factory=dict)
    tested: Mapping[str, Mapping[int, EvaluationProgress]] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[int, Path] = field(default_factory=dict)
    start_seconds: float | None = None
    processor_seconds: float | None = None


@dataclass(slots=True)
class ReusableFederation:
    """A server and clients that are started when they are first needed, and stay for the next run.

    They serve runs of the same app with the same number of clients. Use as a context manager: leaving it ends all
    processes.

    folder: for kits, logs and the server's data.
    plain: the owners allow updates that the server can read.
    paces: of each site, as `fedcore.flower.apps.progress_protocol.wait_for_pace` has them; set before the first run.
    """

    folder: Path
    plain: bool = False
    paces: Sequence[Sequence[float]] = ()
    _running: _RunningFederation | None = None
    _started: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    @property
    def is_running(self) -> bool:
        """Whether there is a federation for the next run; else that starts one."""
        return self._running is not None

    def execute(self, run: PlannedRun, emit: EventSink) -> FederatedOutcome:
        """Submit one run and follow it to its end; the model lies in the run's folder where it finished.

        A federation that lost a process is not used again. Raises EnvironmentFailure if a process ends that was not
        to be killed.
        """
        reusable, began = False, time.monotonic()
        try:
            if self._running is None:
                self._started += 1
                folder = self.folder / f"federation-{self._started}"
                self._running = _RunningFederation.start(folder, run, plain=self.plain, paces=self.paces)
                self._running.warm_up(run)
            followed = self._running.follow(run, _settings(run, plain=self.plain), emit, began)
            reusable = followed.record.status == "finished" and run.kill is None
        finally:
            if not reusable:
                self._close()
        return followed

    def _close(self) -> None:
        if self._running is not None:
            self._running.group.stop()
            self._running = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunningFederation:
    """A server and clients that run.

    models_on_clients: the model that each client has, by its name.
    """

    local: LocalFederation
    group: ChildProcesses
    models_on_clients: dict[str, str] = field(default_factory=dict)

    @classmethod
    def start(cls, folder: Path, run: PlannedRun, *, plain: bool, paces: Sequence[Sequence[float]] = ()) -> Self:
        """Start all processes and wait until every client is connected."""
        local = LocalFederation.create(folder / "kits", clients=run.sites, allow_plain=plain)
        own = {f"{PACE_PREFIX}{worker_name(site)}": json.dumps(seconds) for site, seconds in enumerate(paces)}
        group = ChildProcesses(folder / "logs", {**run.environment(), PROGRESS_VARIABLE: "1", **own}).__enter__()
        try:
            local.start_server(group)
            telling = ("--env", PROGRESS_VARIABLE, *(("--env", VALIDATION_VARIABLE) if run.validation else ()))
            paced = {name: ("--env", f"{PACE_PREFIX}{name}") if paces else () for name in local.client_names()}
            local.start_clients(group, run.app.folder, {name: (*telling, *pace) for name, pace in paced.items()})
            local.wait_connected(group)
        except BaseException:
            group.stop()
            raise
        return cls(local=local, group=group)

    def warm_up(self, run: PlannedRun) -> None:
        """One round that does not count: clients then have read their data and imported what a step needs.

        A baseline's workers practise before their first round, too. Raises RunFailed.
        """
        if ROUNDS_KEY not in run.config:
            return
        short = replace(run, folder=self.group.logs.parent / "warm-up", config={**run.config, ROUNDS_KEY: 1}, kill=None)
        followed = self.follow(short, {**run.settings, **_WITHOUT_PRIVACY}, ignore, time.monotonic())
        if followed.record.status != "finished":
            raise RunFailed(followed.record.reason or "the first round ended without a word")

    def follow(
        self, run: PlannedRun, settings: Mapping[str, Scalar], emit: EventSink, began: float
    ) -> FederatedOutcome:
        """Submit a run and follow it; began: when its start did, on the monotonic clock."""
        out = run.folder / MODEL_FILE
        command = run_command(run.app.folder, self.local.operator, out=out, run_config=run.config, settings=settings)
        killing = ClientKiller(group=self.group, kill=run.kill, sites=run.sites, buffered=_is_buffered(run))
        sent = SentModels(on_clients=self.models_on_clients)
        versions = ModelVersions(self.local.folder / "server" / "data", run.folder)
        logs = {name: self.group.logs / f"{name}.log" for name in self.local.client_names()}
        before = {name: path.stat().st_size for name, path in logs.items()}
        started: list[float] = []

        def show(event: RunEvent) -> None:
            if isinstance(event, ExchangeStarted) and is_training(event.message_type) and not started:
                started.append(time.monotonic() - began)
            emit(event)
            sent.see(event)
            versions.see(event)
            killing.see(event)

        took = -seconds_of(self.group.pids)
        child = self.group.start(_RUN, command, piped=True)
        try:
            record = follow(self.group, child, show)
            took += seconds_of(self.group.pids)
        finally:
            self.group.stop(_RUN)
        _take_means(out, run.folder)
        progress = {name: progress_since(path, before[name]) for name, path in logs.items()}
        return FederatedOutcome(
            record=record,
            losses=killing.losses(record),
            models=tuple(sent.models),
            fetched=tuple(sent.fetched),
            examples={name: examples_by_round(one) for name, one in progress.items()},
            tested={name: evaluations_by_round(one) for name, one in progress.items()},
            results=_results(out),
            versions=versions.paths,
            start_seconds=started[0] if started else None,
            # A client that was killed takes its time with it.
            processor_seconds=took if run.kill is None else None,
        )


def _results(model: Path) -> dict[str, Any]:
    """The results file next to the model of a run; {} if there is none."""
    path = OutputPaths.next_to(model).results
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def _take_means(model: Path, folder: Path) -> None:
    """Move the means that the ServerApp left among its files to the folder of the run."""
    files = OutputPaths.next_to(model).files
    if (files / FOLDER).is_dir():
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
        (files / FOLDER).rename(folder / FOLDER)
        if not any(files.iterdir()):
            files.rmdir()


def progress_since(log: Path, start: int) -> list[ProgressLine]:
    """What a client's app told in its log from byte `start` on."""
    with log.open("rb") as file:
        file.seek(start)
        return list(parse_progress(file.read().decode(errors="replace").splitlines()))


def examples_by_round(lines: Iterable[ProgressLine]) -> dict[int, int]:
    """Round -> examples that were trained on in it, however often it was asked for."""
    examples: Counter[int] = Counter()
    for one in lines:
        if isinstance(one, TrainingProgress):
            examples[one.round] += one.examples
    return dict(examples)


def evaluations_by_round(lines: Iterable[ProgressLine]) -> dict[int, EvaluationProgress]:
    """Round -> what its model gave, the last time that it was asked for."""
    return {one.round: one for one in lines if isinstance(one, EvaluationProgress)}


def _settings(run: PlannedRun, *, plain: bool) -> dict[str, Scalar]:
    """The settings of the run; one that is to lose a client continues without it, if the policies allow that.

    A buffered run does so anyway; the clients that do not train evaluate, which may be few.
    """
    if run.kill is None:
        return dict(run.settings)
    if _is_buffered(run):
        return {**run.settings, "join-seconds": JOIN_SECONDS}
    fewest = 1 if plain else Policy.default(run.sites).min_cohort
    return {**run.settings, "min-clients": max(fewest, run.sites - 1), "join-seconds": JOIN_SECONDS}


def _is_buffered(run: PlannedRun) -> bool:
    return run.settings.get("asynchrony") == "buffered"


def follow(group: ChildProcesses, child: subprocess.Popen[str], emit: EventSink) -> RunRecord:
    """Read a run's events until it ends; another process of the group that ends with an error ends the run too."""
    record = RunRecord()
    for line in _lines(child, idle=lambda: group.check(but=child)):
        if "event" in json.loads(line):  # not the summary, which comes last
            recorded = Recorded.model_validate_json(line)
            record.add(recorded.event, recorded.seconds)
            emit(recorded.event)
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
            line = lines.get(timeout=_IDLE_SECONDS)
        except queue.Empty:
            idle()
            continue
        if not line:
            return
        yield line
