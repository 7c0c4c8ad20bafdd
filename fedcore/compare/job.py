"""One comparison: which modes, on what, and where the results go."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedcore.compare.processes import LocalFederation, ProcessGroup, run_command
from fedcore.config import JobSettings, override
from fedcore.errors import ConfigurationError, RunFailed
from fedcore.flower.app import FlowerApp
from fedcore.record import EventSink, RunRecord
from fedcore.wire import Scalar

MODES = ("federated", "federated-plain", "federated-dp", "centralized")
PRIVATE_MODE = "federated-dp"
IDLE_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareJob:
    """What is compared. run_config and settings are laid over the app's own; out must be a folder of this job alone.

    Settings of differential privacy hold for the mode federated-dp alone, so that it can be compared with the others.
    """

    app: FlowerApp
    modes: tuple[str, ...]
    clients: int
    out: Path
    run_config: Mapping[str, Scalar] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    data_dir: Path | None = None

    def __post_init__(self) -> None:
        for mode in self.modes:
            if mode not in MODES:
                raise ConfigurationError(f"unknown mode {mode!r}; choose from {', '.join(MODES)}")
        if len(set(self.modes)) != len(self.modes) or not self.modes:
            raise ConfigurationError("name each mode once, at least one")
        if self.clients < 2:
            raise ConfigurationError("a comparison needs at least 2 clients")
        override(self.app.run_config, self.run_config, "the run config")
        settings = JobSettings.from_mapping({**self.app.settings.to_mapping(), **self.settings}, where="--set")
        if settings.private != (PRIVATE_MODE in self.modes):
            raise ConfigurationError(
                f"dp-epsilon or dp-noise-multiplier and the mode {PRIVATE_MODE} go together: name both or neither"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeResult:
    """One mode's record, and how long it took with all its processes, from the first start to the last end."""

    mode: str
    record: RunRecord
    wall_seconds: float


def run_mode(job: CompareJob, mode: str, emit: EventSink) -> ModeResult:
    """Run one mode in processes of its own; raises RunFailed where it ends without a model."""
    folder = job.out / mode
    started = time.monotonic()
    runner = _centralized if mode == "centralized" else _federated
    record = runner(job, mode, folder, emit)
    if record.status != "finished":
        raise RunFailed(
            f"{mode} ended as {record.status or 'unfinished'}: {record.reason or 'no reason given'}; see {folder}"
        )
    return ModeResult(mode=mode, record=record, wall_seconds=time.monotonic() - started)


def _federated(job: CompareJob, mode: str, folder: Path, emit: EventSink) -> RunRecord:
    plain = mode == "federated-plain"
    federation = LocalFederation.create(folder / "federation", clients=job.clients, allow_plain=plain)
    with ProcessGroup(folder / "logs", _environment(job)) as group:
        federation.start_server(group)
        federation.start_clients(group, job.app.folder)
        command = run_command(
            job.app.folder,
            federation.operator,
            out=folder / "model.safetensors",
            run_config=job.run_config,
            settings=mode_settings(job, mode),
        )
        return _follow(group, group.start("run", command, piped=True), emit)


def mode_settings(job: CompareJob, mode: str) -> dict[str, Any]:
    """The job's settings as one of the federated modes has them."""
    aggregation = "plain" if mode == "federated-plain" else "secure"
    settings = {**job.settings, "min-clients": job.clients, "aggregation": aggregation}
    return settings if mode == PRIVATE_MODE else {**settings, "dp-epsilon": 0.0, "dp-noise-multiplier": 0.0}


def _centralized(job: CompareJob, mode: str, folder: Path, emit: EventSink) -> RunRecord:
    command = [
        sys.executable,
        "-m",
        "fedcore.compare.centralized",
        str(job.app.folder),
        "--clients",
        str(job.clients),
        "--run-config",
        json.dumps(dict(job.run_config)),
        "--out",
        str(folder / "model.safetensors"),
    ]
    with ProcessGroup(folder / "logs", _environment(job)) as group:
        return _follow(group, group.start(mode, command, piped=True), emit)


def _environment(job: CompareJob) -> dict[str, str]:
    environment = {"FLWR_TELEMETRY_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
    # Several clients on one machine: more threads than cores would make each of them slower.
    threads = max(1, (os.cpu_count() or 1) // job.clients)
    environment["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(threads))
    if job.data_dir is not None:
        environment["FEDCORE_DATA"] = str(job.data_dir)
    return environment


def _follow(group: ProcessGroup, child: subprocess.Popen[str], emit: EventSink) -> RunRecord:
    """Read events until the run ends; another process of the group that ends with an error ends the run too."""
    record = RunRecord()
    for line in _lines(child, idle=lambda: group.check(but=child)):
        event = json.loads(line)
        if "kind" not in event:
            continue
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
