"""One run of ps-sync, ps-async or ps-ssp, from the initial model to its result."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedcore.compare.evaluation import SILENCE_SECONDS, Evaluated, emit_evaluation, evaluate_rounds, everywhere
from fedcore.compare.initial import save_initial
from fedcore.compare.parameter_server.assembly import assemble
from fedcore.compare.parameter_server.supervision import Training
from fedcore.compare.parameter_server.tasks import Task
from fedcore.compare.problem import ROUNDS
from fedcore.compare.results import Point, RunResult, Staleness
from fedcore.compare.run import MODEL_FILE, ModeRun, worker_name
from fedcore.compare.training import snapshot
from fedcore.compare.workers import Workers
from fedcore.errors import ConfigurationError, FedcoreError
from fedcore.events import EventSink, RunEnded, RunStarted
from fedcore.state.files import sha256_file
from fedcore.wire import RunStatus


def run_parameter_server(run: ModeRun, emit: EventSink, *, slept: bool = False) -> RunResult:
    """Train by a parameter server: one process for each shard, one for each worker.

    slept: workers really take the time that `run.network` and `run.cost` say, in place of a simulated clock. A run that
    fails is a result, too, with the models of the rounds before.
    """
    began = time.monotonic()
    task = Task(run=run, slept=slept)
    result = RunResult(mode=run.mode.label, kind=run.mode.kind, seed=run.seed, point=run.point)
    rounds = int(run.config.get(ROUNDS, 0))
    # What an interrupted run left there would be taken for the meeting points of this one.
    shutil.rmtree(task.pieces, ignore_errors=True)
    task.pieces.mkdir(parents=True)
    emit(RunStarted(app=run.app.name, aggregation="none", rounds=rounds))
    with Workers(run.folder, run.environment()) as workers:
        training = Training(task, workers, emit)
        try:
            if run.network is not None and run.cost is None:
                raise ConfigurationError("a network model needs the cost of a step")
            result = replace(result, initial_sha256=save_initial(run, workers))
            training.run()
        except FedcoreError as error:
            workers.stop()
            result = replace(result, status="failed", reason=str(error))
        result = _with_reports(result, task, training)
        try:
            result = _with_models(result, task, training)
        except FedcoreError as error:
            result = replace(result, status="failed", reason=result.reason or str(error))
    shutil.rmtree(task.pieces)
    if result.status == "finished":
        emit_evaluation(result, emit)
    emit(RunEnded(status=RunStatus(result.status), reason=result.reason))
    return replace(result, wall_seconds=time.monotonic() - began)


def _with_reports(result: RunResult, task: Task, training: Training) -> RunResult:
    """What the processes reported while they trained."""
    names = [worker_name(worker) for worker in range(task.run.sites)]
    last: Mapping[str, Any] = training.rounds[-1] if training.rounds else {}
    traffic = [counts[max(counts)] for counts in training.traffic]
    summary = training.finished
    return replace(
        result,
        samples=summary.get("samples", last.get("samples", 0)),
        steps={name: summary["steps"].get(str(worker), 0) for worker, name in enumerate(names)} if summary else {},
        seconds=last.get("seconds", 0.0),
        simulated_seconds=last.get("simulated_seconds"),
        bytes_up={name: up for name, (up, _) in zip(names, traffic, strict=True)},
        bytes_down={name: down for name, (_, down) in zip(names, traffic, strict=True)},
        staleness=_staleness(summary, task.bound) if summary else None,
        losses=tuple(training.losses),
    )


def _staleness(summary: Mapping[str, Any], bound: float) -> Staleness:
    return Staleness(
        clocks={int(age): count for age, count in summary["clocks"].items()},
        updates={int(age): count for age, count in summary["updates"].items()},
        bound=None if math.isinf(bound) else bound,
    )


def _with_models(result: RunResult, task: Task, training: Training) -> RunResult:
    """Evaluate the initial model and that of every round; the last one stays, as model.safetensors."""
    run, workers = task.run, training.workers
    rounds = [report["round"] for report in training.rounds]
    if not rounds:
        return result
    (size,) = workers.call("assembler", assemble, task, rounds, silence=SILENCE_SECONDS)
    models = {0: task.initial, **{number: snapshot(run.folder, number) for number in rounds}}
    found = evaluate_rounds(run, workers, {number: everywhere(run, path) for number, path in models.items()})
    finished, final = result.status == "finished", run.folder / MODEL_FILE
    if finished:
        models[rounds[-1]].replace(final)
    for number in rounds:
        models[number].unlink(missing_ok=True)
    reports = {report["round"]: report for report in training.rounds}
    return replace(
        result,
        parameters=size.data["parameters"],
        curve=tuple(_point(number, found[number], reports.get(number), training) for number in models),
        sites=found[rounds[-1]].sites if finished else (),
        model_sha256=sha256_file(final) if finished else "",
    )


def _point(number: int, found: Evaluated, report: Mapping[str, Any] | None, training: Training) -> Point:
    traffic = training.bytes_at(number) if number else [(0, 0)]
    if report is None:
        report = {"samples": 0, "seconds": 0.0, "simulated_seconds": 0.0 if training.task.simulated else None}
    return Point(
        round=number,
        samples=report["samples"],
        seconds=report["seconds"],
        simulated_seconds=report["simulated_seconds"],
        bytes_up=sum(up for up, _ in traffic) / len(traffic),
        bytes_down=sum(down for _, down in traffic) / len(traffic),
        loss=found.loss,
        accuracy=found.accuracy,
    )
