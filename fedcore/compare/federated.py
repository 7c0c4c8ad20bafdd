"""The federated modes: an unmodified Flower app on a real server and real clients, as a `RunResult`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate

from fedcore.compare.clock import Exchanged, federated_seconds
from fedcore.compare.evaluation import Evaluated, evaluate_rounds, everywhere
from fedcore.compare.federation import Federation, Followed
from fedcore.compare.initial import INITIAL_FILE, START_SECONDS, initial_state
from fedcore.compare.problem import Problem
from fedcore.compare.results import Point, RunResult
from fedcore.compare.run import MODEL_FILE, ModeRun, worker_name
from fedcore.compare.schedule import Schedule
from fedcore.compare.workers import ReportSink, Workers
from fedcore.errors import AppError, ConfigurationError, FedcoreError
from fedcore.events import EventSink, ExchangeDone
from fedcore.record import RunRecord, metric_like
from fedcore.state import sha256_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What the app says of a run. model_bytes: of the file that clients fetch; 0 where the run begins without a model.

    schedule: None for an app that does its own training; the examples are then those that its clients report.
    """

    parameters: int
    model_bytes: int
    schedule: Schedule | None


def run_federated(run: ModeRun, emit: EventSink, federation: Federation) -> RunResult:
    """Carry out one run in a federation that may have served others before.

    Seconds and bytes are those of completed training exchanges. The start of the federation is in the wall seconds of
    its first run. The last model is evaluated on every site where the app is a `supervised_app`; with differential
    privacy that is the only accuracy, since what clients report is noised. A run that fails is a result, too.
    """
    started = time.monotonic()
    run.folder.mkdir(parents=True, exist_ok=True)
    try:
        followed = federation.carry_out(run, emit)
        with Workers(run.folder, run.environment()) as workers:
            about = describe(run, workers)
            result = _result(run, followed, about)
            if about.schedule is not None and result.model_sha256:
                result = _evaluated(run, result, workers)
    except FedcoreError as error:
        result = RunResult(
            mode=run.mode.label, kind=run.mode.kind, seed=run.seed, point=run.point, status="failed", reason=str(error)
        )
    return replace(result, wall_seconds=time.monotonic() - started)


def describe(run: ModeRun, workers: Workers) -> Description:
    """Ask the app in a process of its own, which leaves the first model in the run's folder; raises RunFailed."""
    (report,) = workers.call("describe", _describe, run, silence=START_SECONDS)
    schedule, path = report.data["schedule"], run.folder / INITIAL_FILE
    return Description(
        parameters=report.data["parameters"],
        model_bytes=path.stat().st_size if path.exists() else 0,
        schedule=Schedule(**{**schedule, "counts": tuple(schedule["counts"])}) if schedule else None,
    )


def _describe(report: ReportSink, run: ModeRun) -> None:
    parameters, schedule = 0, None
    # Any Flower app will do: one that sends no model at first, and one that trains in its own way.
    with contextlib.suppress(AppError):
        state = initial_state(run.app, config=run.config, sites=run.sites)
        state.save(run.folder / INITIAL_FILE)
        parameters = sum(spec.size for spec in state.layout.specs)
    with contextlib.suppress(ConfigurationError):
        schedule = asdict(Problem.load(run.app, config=run.config, sites=run.sites).schedule)
    report("described", {"schedule": schedule, "parameters": parameters})


def _evaluated(run: ModeRun, result: RunResult, workers: Workers) -> RunResult:
    """The result with its first point, and with the last model on every site."""
    last = result.curve[-1].round
    models = {0: everywhere(run, run.folder / INITIAL_FILE), last: everywhere(run, run.folder / MODEL_FILE)}
    found = evaluate_rounds(run, workers, models)
    start = Point(
        round=0,
        samples=0,
        seconds=0.0,
        simulated_seconds=0.0 if result.simulated_seconds is not None else None,
        bytes_up=0.0,
        bytes_down=0.0,
        loss=found[0].loss,
        accuracy=found[0].accuracy,
    )
    rest = result.curve if result.privacy is None else _without_noise(result.curve, found[last])
    return replace(result, curve=(start, *rest), sites=found[last].sites)


def _without_noise(curve: tuple[Point, ...], last: Evaluated) -> tuple[Point, ...]:
    """With differential privacy clients add noise to what they report; the model itself is evaluated as it is."""
    silent = (replace(point, loss=None, accuracy=None) for point in curve[:-1])
    return (*silent, replace(curve[-1], loss=last.loss, accuracy=last.accuracy))


# --- from the record to the result ----------------------------------------------------------------------------------


def _result(run: ModeRun, followed: Followed, about: Description) -> RunResult:
    record = followed.record
    training = _training(followed, about.model_bytes)
    simulated = _simulated(run, record, training, about.schedule)
    curve = _curve(run, record, training, about.schedule, simulated)
    finished = record.status == "finished"
    model = run.folder / MODEL_FILE
    return RunResult(
        mode=run.mode.label,
        kind=run.mode.kind,
        seed=run.seed,
        point=run.point,
        status="finished" if finished else "failed",
        reason=record.reason if record.status else "the run ended without a word",
        aggregation=record.aggregation,
        parameters=about.parameters,
        samples=curve[-1].samples if curve else 0,
        steps=_steps(run.sites, training, about.schedule),
        seconds=sum(exchange.seconds for exchange in training),
        simulated_seconds=simulated[-1] if simulated else None,
        bytes_up=_total(run.sites, [exchange.bytes_up for exchange in training]),
        bytes_down=_total(run.sites, [exchange.bytes_down for exchange in training]),
        initial_sha256=next(filter(None, followed.models), ""),
        model_sha256=sha256_file(model) if finished and model.exists() else "",
        curve=curve,
        losses=followed.losses,
        failures=tuple(record.failures),
        privacy=record.privacy,
        epsilon_spent=record.epsilon_spent(),
    )


def _training(followed: Followed, size: int) -> list[ExchangeDone]:
    """The training exchanges, each with the model that its clients began with, of `size` bytes.

    A client that fetched it to evaluate it does not fetch it again. A baseline's evaluation costs no bytes, so that the
    download belongs to the training here, too.
    """
    return [
        exchange.model_copy(
            update={
                "bytes_down": {
                    name: count + (size if model and name not in fetched else 0)
                    for name, count in exchange.bytes_down.items()
                }
            }
        )
        for exchange, model, fetched in zip(followed.record.exchanges, followed.models, followed.fetched, strict=True)
        if exchange.trains
    ]


def _curve(
    run: ModeRun,
    record: RunRecord,
    training: Sequence[ExchangeDone],
    schedule: Schedule | None,
    simulated: Sequence[float],
) -> tuple[Point, ...]:
    loss, accuracy = (_evaluations(record, word) for word in ("loss", "acc"))
    samples = accumulate(_samples(exchange, schedule, record) for exchange in training)
    seconds = accumulate(exchange.seconds for exchange in training)
    up = accumulate(sum(exchange.bytes_up.values()) / run.sites for exchange in training)
    down = accumulate(sum(exchange.bytes_down.values()) / run.sites for exchange in training)
    clock: Sequence[float | None] = simulated or [None] * len(training)
    return tuple(
        Point(
            round=exchange.server_round,
            samples=seen,
            seconds=at,
            simulated_seconds=then,
            bytes_up=sent,
            bytes_down=received,
            loss=loss.get(exchange.server_round),
            accuracy=accuracy.get(exchange.server_round),
        )
        for exchange, seen, at, then, sent, received in zip(training, samples, seconds, clock, up, down, strict=True)
    )


def _evaluations(record: RunRecord, word: str) -> dict[int, float]:
    """Round -> the app's own metric of its evaluation."""
    name = metric_like(record.final_metrics(), word)
    return {server_round: value for server_round, _, value in record.curve(name)} if name else {}


def _samples(exchange: ExchangeDone, schedule: Schedule | None, record: RunRecord) -> int:
    """Examples that the survivors took, repetitions counted; otherwise those that they reported, if they did."""
    if schedule is None:
        return exchange.examples if record.privacy is None else 0
    return sum(schedule.own_samples(site_of(name)) for name in exchange.survivors)


def _steps(sites: int, training: Sequence[ExchangeDone], schedule: Schedule | None) -> dict[str, int]:
    if schedule is None:
        return {}
    taken = [sum(worker_name(site) in exchange.survivors for exchange in training) for site in range(sites)]
    return {worker_name(site): count * schedule.own_steps(site)[1] for site, count in enumerate(taken)}


def _simulated(
    run: ModeRun, record: RunRecord, training: Sequence[ExchangeDone], schedule: Schedule | None
) -> list[float]:
    """The simulated clock at the end of each training exchange; nothing without a network or a known schedule."""
    if run.network is None or run.cost is None or schedule is None:
        return []
    exchanges = [
        Exchanged(
            server_round=exchange.server_round,
            up={site_of(name): exchange.bytes_up[name] for name in exchange.survivors},
            down={site_of(name): exchange.bytes_down[name] for name in exchange.survivors},
        )
        for exchange in training
    ]
    return federated_seconds(schedule, exchanges, run.cost, run.network, secure=record.aggregation == "secure")


def _total(sites: int, exchanges: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = [worker_name(site) for site in range(sites)]
    return {name: sum(exchange.get(name, 0) for exchange in exchanges) for name in names}


def site_of(name: str) -> int:
    """The inverse of `worker_name`."""
    return int(name.removeprefix("client-")) - 1
