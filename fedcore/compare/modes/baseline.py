"""The baselines that train a `supervised_app` without a server: centralized, local, all-reduce, averaging.

Each worker is a process. A rank of a group that is lost ends the run, since a collective needs every rank; a site that
trains alone is missed by nobody.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

from fedcore.compare.account import Account
from fedcore.compare.evaluation import Evaluated, Models, emit_evaluation, evaluate_rounds, everywhere
from fedcore.compare.initial import INITIAL_FILE, save_initial
from fedcore.compare.modes.base import Mode, Option
from fedcore.compare.network import Cost, Network
from fedcore.compare.problem import ROUNDS
from fedcore.compare.results import Loss, Point, RunResult
from fedcore.compare.run import MODEL_FILE, ModeRun
from fedcore.compare.schedule import Schedule
from fedcore.compare.training import (
    EVALUATED,
    LOOPBACK,
    READY,
    ROUND,
    snapshot,
)
from fedcore.compare.workers import ENDED, WorkerEvent, Workers
from fedcore.errors import EnvironmentFailure, FedcoreError
from fedcore.events import AppPrinted, EventSink, ExchangeDone, RunEnded, RunStarted
from fedcore.state.files import sha256_file
from fedcore.system.peers import BLAME_SECONDS, first_cause, tells_of_lost_peer
from fedcore.wire import RunStatus

GLOBAL_BATCH: Final = {"global-batch": Option(0)}
"""Examples of one step of all workers together; 0 for the default of the mode."""


@dataclass(frozen=True, kw_only=True)
class Baseline(Mode):
    """A mode that trains a `supervised_app` without a server."""

    goes_on: ClassVar[bool] = False
    """Whether the others go on where a worker is lost."""
    consequence: ClassVar[str]
    """What becomes of a run that loses a worker."""

    @abstractmethod
    def start(self, run: ModeRun, workers: Workers) -> tuple[str, ...]:
        """Start all workers; their names, in the order of their sites."""

    @abstractmethod
    def clock(self, run: ModeRun, account: Account, schedule: Schedule, cost: Cost, network: Network) -> list[float]:
        """Seconds from the start to the end of each whole round, on other machines and links."""

    def models(self, run: ModeRun, account: Account, number: int) -> Models:
        """What each site is evaluated with after a round."""
        return everywhere(run, snapshot(run.folder, number))

    def carry_out(self, run: ModeRun, emit: EventSink, warm: Any) -> RunResult:
        return run_baseline(self, run, emit)


def run_baseline(mode: Baseline, run: ModeRun, emit: EventSink) -> RunResult:
    """Carry out one run; whatever fails, the result says it."""
    started = time.monotonic()
    run.folder.mkdir(parents=True, exist_ok=True)
    rounds = int(run.config.get(ROUNDS, 0))
    emit(RunStarted(app=run.app.name, aggregation="none", rounds=rounds))
    result = RunResult(mode=run.mode.label, kind=run.mode.kind, seed=run.seed, point=run.point)
    try:
        with Workers(run.folder, run.environment()) as workers:
            result = replace(result, initial_sha256=save_initial(run, workers))
            account = _train(mode, run, workers, emit)
            result = _with_account(mode, result, run, account)
            result = _with_models(mode, result, run, workers, account)
    except FedcoreError as error:
        result = replace(result, status="failed", reason=result.reason or str(error))
    if result.status == "finished":
        emit_evaluation(result, emit)
    emit(RunEnded(status=RunStatus(result.status), reason=result.reason))
    return replace(result, wall_seconds=time.monotonic() - started)


# --- the workers -----------------------------------------------------------------------------------------------------


def _train(mode: Baseline, run: ModeRun, workers: Workers, emit: EventSink) -> Account:
    account = Account(names=mode.start(run, workers))
    try:
        for event in workers.events(silence=run.app.settings.train_seconds):
            if event.kind == READY:
                account.ready[event.name] = event.data
            elif event.kind == ROUND:
                account.add(event.name, event.data)
            elif event.kind == EVALUATED:
                account.evaluated[event.data["round"]] = event.data
            elif event.kind == "log":
                emit(AppPrinted(**event.data))
            elif event.kind == ENDED and event.data["exitcode"]:
                _lose(mode, run, workers, account, event)
            for number in account.close_rounds():
                emit(_done(account, number))
                if run.kill is not None and run.kill.round == number:
                    # Centralized training has workers of its own, whatever the sites.
                    workers.kill(account.names[run.kill.site % len(account.names)])
    except EnvironmentFailure as error:
        workers.stop()
        account.reason = str(error)
    return account


def start_group(workers: Workers, names: Sequence[str], target: Callable[..., object], run: ModeRun) -> None:
    """Start the ranks of one process group, each with `target(report, run, rank, port, listening)`."""
    # Rank 0 gets the socket that its store listens on, so that nobody races for a port.
    with socket.create_server((LOOPBACK, 0)) as listening:
        port = listening.getsockname()[1]
        for rank, name in enumerate(names):
            workers.start(name, target, run, rank, port, listening if rank == 0 else None)


def _lose(mode: Baseline, run: ModeRun, workers: Workers, account: Account, event: WorkerEvent) -> None:
    """A worker ended before its time: the others go on, where they need it for nothing, or all end now."""
    noticed = time.monotonic()
    event = _to_blame(workers, event)
    if event.data["exitcode"] > 0:
        workers.stop()
        account.reason = f"{event.name}: {event.data['reason']}"
        return
    number = account.last_round(event.name)
    consequence = mode.consequence
    account.lost.add(event.name)
    if not mode.goes_on:
        workers.stop()
    if number == int(run.config[ROUNDS]):
        consequence = "all its rounds were over"
    elif not mode.goes_on or account.lost == set(account.names):
        account.reason = f"{event.name} was lost after round {number} ({event.data['reason']}); {consequence}"
    loss = Loss(worker=event.name, round=number, consequence=consequence, seconds=time.monotonic() - noticed)
    account.losses.append(loss)


def _to_blame(workers: Workers, first: WorkerEvent) -> WorkerEvent:
    """The worker whose end led to the others': one that merely lost its peer waits for the peer's own end."""

    def endings() -> Iterator[WorkerEvent]:
        yield first
        with contextlib.suppress(EnvironmentFailure):
            yield from (event for event in workers.events(silence=BLAME_SECONDS) if event.kind == ENDED)

    return first_cause(endings(), lambda event: tells_of_lost_peer(event.data["reason"]))


def _done(account: Account, number: int) -> ExchangeDone:
    """A round as the events of a run tell it."""
    reports = account.rounds[number - 1]
    return ExchangeDone(
        exchange=number,
        server_round=number,
        message_type="train",
        aggregation="none",
        survivors=sorted(reports),
        examples=sum(report["samples"] for report in reports.values()),
        metrics={"train_loss": account.train_loss(number)},
        seconds=max(report["seconds"] for report in reports.values()),
        bytes_up={name: report["sent"] for name, report in reports.items()},
        bytes_down={name: report["received"] for name, report in reports.items()},
    )


# --- the result ------------------------------------------------------------------------------------------------------


def _with_account(mode: Baseline, result: RunResult, run: ModeRun, account: Account) -> RunResult:
    """What is known without an evaluation."""
    curve = _curve(account, _simulated(mode, run, account))
    last = curve[-1]
    return replace(
        result,
        status="failed" if account.reason else "finished",
        reason=account.reason,
        parameters=max((report["parameters"] for report in account.ready.values()), default=0),
        samples=last.samples,
        steps=account.steps(),
        seconds=last.seconds,
        simulated_seconds=last.simulated_seconds,
        bytes_up=account.bytes_of("sent"),
        bytes_down=account.bytes_of("received"),
        curve=curve,
        losses=tuple(account.losses),
    )


def _curve(account: Account, simulated: Sequence[float]) -> tuple[Point, ...]:
    """The whole rounds after the start, none of them evaluated."""
    columns = (account.samples(), account.seconds(), account.mean_bytes("sent"), account.mean_bytes("received"))
    rows = [(0, 0.0, 0.0, 0.0), *zip(*columns, strict=True)]
    clock = [0.0, *simulated] if simulated else [None] * len(rows)
    return tuple(
        Point(
            round=number,
            samples=samples,
            seconds=seconds,
            simulated_seconds=then,
            bytes_up=sent,
            bytes_down=received,
            loss=None,
            accuracy=None,
        )
        for number, ((samples, seconds, sent, received), then) in enumerate(zip(rows, clock, strict=True))
    )


def _simulated(mode: Baseline, run: ModeRun, account: Account) -> list[float]:
    """The simulated clock at the end of every whole round; empty without a network."""
    counts = account.counts()
    if run.network is None or run.cost is None or len(counts) != run.sites:
        return []
    return mode.clock(run, account, Schedule.of(run.config, counts), run.cost, run.network)


def _with_models(mode: Baseline, result: RunResult, run: ModeRun, workers: Workers, account: Account) -> RunResult:
    """Evaluate the model of every round, and keep the last of a run that finished."""
    finished = result.status == "finished"
    model = run.folder / MODEL_FILE
    if account.evaluated:
        return _with_own_evaluation(result, account, model)
    kept = {number: mode.models(run, account, number) for number in range(1, len(account.rounds) + 1)}
    found = evaluate_rounds(run, workers, {0: everywhere(run, run.folder / INITIAL_FILE), **kept})
    result = replace(result, curve=tuple(_evaluated(point, found) for point in result.curve))
    if finished and kept:
        # In mode local, a site that was lost has no model in the last round.
        for path in set(kept[len(kept)].values()):
            os.replace(path, path.with_name(MODEL_FILE))
        result = replace(result, sites=found[len(kept)].sites)
    for path in [*run.folder.glob("round-*.safetensors"), *run.folder.glob("*/round-*.safetensors")]:
        path.unlink()
    return replace(result, model_sha256=_sha256(model) if finished else "")


def _with_own_evaluation(result: RunResult, account: Account, model: Path) -> RunResult:
    """By the app itself, on the test part of all sites together."""
    found = account.evaluated
    if result.status == "failed":
        model.unlink(missing_ok=True)
    curve = [
        replace(point, loss=found[point.round]["loss"], accuracy=found[point.round]["accuracy"])
        if point.round in found
        else point
        for point in result.curve
    ]
    return replace(result, curve=tuple(curve), model_sha256=_sha256(model))


def _sha256(model: Path) -> str:
    return sha256_file(model) if model.exists() else ""


def _evaluated(point: Point, found: Mapping[int, Evaluated]) -> Point:
    return replace(point, loss=found[point.round].loss, accuracy=found[point.round].accuracy)
