"""The app itself, unmodified, on a real server and real clients: federated, federated-plain, federated-dp."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from fedcore.comparison.app_evaluation import AppEvaluation
from fedcore.comparison.federation import FederatedOutcome, ReusableFederation, TrainedExamples
from fedcore.comparison.judging import LOSS
from fedcore.comparison.measure.clock import TimedExchange, buffered_seconds, federated_seconds
from fedcore.comparison.modes.base import InReport, Mode, Readers, Trained, Twin
from fedcore.comparison.results import CurvePoint, Metrics, RunResult, as_metrics, number_of
from fedcore.comparison.run import INITIAL_FILE, MODEL_FILE, PlannedRun, site_of, worker_name
from fedcore.comparison.workers.models import START_SECONDS, everywhere, first_of
from fedcore.comparison.workers.problem import Problem, TreesProblem
from fedcore.comparison.workers.processes import ReportSink, WorkerReport, Workers
from fedcore.comparison.workers.schedule import Schedule
from fedcore.comparison.workers.trees import save_rounds
from fedcore.errors import AppError, ConfigurationError
from fedcore.flower.apps.progress_protocol import EvaluationProgress
from fedcore.flower.trees.question import GROW
from fedcore.monitoring.run_record import RunRecord, metric_like
from fedcore.run.model_selection import laid_over
from fedcore.run.settings import BUFFERED_SETTINGS, JobSettings
from fedcore.state import sha256_file
from fedcore.wire.events import EventSink, ExchangeDone

TOGETHER: Final = "dp-epsilon or dp-noise-multiplier and the mode {} go together: name both or neither"
_TWINS: Final[Mapping[str, Mapping[str, Twin]]] = {
    "secure": {"federated-plain": "secrecy"}, "private": {"federated": "privacy"}, "plain": {}
}  # fmt: skip
EXAMPLES, WEIGHT_KEY = "num-examples", "weight-key"
# What the mode, or another option of the command, decides.
_DECIDED = {"aggregation", "min-clients", "asynchrony"}


@dataclass(frozen=True, kw_only=True)
class Federated(Mode):
    """Seconds and bytes are those of completed training exchanges.

    First and last model are evaluated on every site where the app says on which data; those between are known by what
    their clients told of them.

    protection: "private" is secure aggregation with differential privacy.
    """

    any_app: ClassVar[bool] = True
    tells_events: ClassVar[bool] = True

    protection: Literal["secure", "plain", "private"] = "secure"

    @property
    def private(self) -> bool:
        return self.protection == "private"

    @property
    def grows_trees(self) -> bool:
        return not self.private

    @property
    def in_report(self) -> InReport:
        readers: Readers = "server" if self.plain else "nobody"
        return InReport(protection=self.protection, readers=readers, twins=_TWINS[self.protection])

    @property
    def plain(self) -> bool:
        """Whether the server reads every update."""
        return self.protection == "plain"

    def setting_names(self) -> frozenset[str]:
        names = JobSettings().to_mapping().keys() - _DECIDED - BUFFERED_SETTINGS.keys()
        return frozenset(name for name in names if self.private or not name.startswith("dp-"))

    def settings(self, settings: Mapping[str, Any], *, sites: int) -> dict[str, Any]:
        """With an aggregation of its own; differential privacy is for the private mode alone."""
        decided: dict[str, Any] = {"min-clients": sites, "aggregation": "plain" if self.plain else "secure"}
        if not self.private:
            decided |= {"dp-epsilon": 0.0, "dp-noise-multiplier": 0.0}
        checked = JobSettings.from_mapping(laid_over(settings, {**decided, **self._rounds(settings)}))
        if checked.private != self.private:
            raise ConfigurationError(TOGETHER.format(self.name))
        return checked.to_mapping()

    def _rounds(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """How trainings are waited for, whatever the app says."""
        del settings
        return {"asynchrony": "none", **BUFFERED_SETTINGS}

    @property
    def warm_group(self) -> str:
        """Clients agree once to what the server may read, so that plain runs need a federation of their own."""
        return f"federation-{'plain' if self.plain else 'secure'}"

    def warm_processes(self, folder: Path) -> ReusableFederation:
        return ReusableFederation(folder, plain=self.plain)

    def round_steps(self, run: PlannedRun, schedule: Schedule) -> float:
        return schedule.mean_own_steps

    def train(self, run: PlannedRun, workers: Workers, emit: EventSink, warm: ReusableFederation) -> Trained:
        followed = warm.execute(run, emit)
        about = describe(run, workers)
        result = result_of(run, followed, about)
        if not result.model_sha256 or (about.schedule is None and not about.tree_rows):
            return Trained(result=result)
        # Every model is evaluated in one way, and without the noise that clients may add to what they report.
        rest = tuple(replace(point, metrics={}) for point in result.curve if point.round)
        start = first_point(result)
        models = {0: run.folder / INITIAL_FILE, rest[-1].round: run.folder / MODEL_FILE}
        if about.tree_rows:  # the last model has those of all rounds in it
            models = {**save_rounds(run.folder / MODEL_FILE, run.folder), **models}
        return Trained(
            result=replace(result, curve=(start, *rest), by_server=()),
            models={number: everywhere(run, model) for number, model in models.items()},
            tested=rounds_tested(followed, run.sites, but=models),
        )


def first_point(result: RunResult) -> CurvePoint:
    """The model that a run began with, before anything was done."""
    last = result.curve[-1]
    return CurvePoint(
        round=0,
        steps=None if last.steps is None else 0.0,
        simulated_seconds=None if last.simulated_seconds is None else 0.0,
    )


def rounds_tested(
    followed: FederatedOutcome, sites: int, *, but: Container[int]
) -> dict[int, tuple[EvaluationProgress, ...]]:
    """Round -> what its model gave on each site; a round that some sites did not evaluate is left out."""
    by_round: dict[int, list[EvaluationProgress]] = {}
    for rounds in followed.tested.values():
        for number, tested in rounds.items():
            by_round.setdefault(number, []).append(tested)
    return {number: tuple(of) for number, of in by_round.items() if len(of) == sites and number not in but}


class Description(WorkerReport):
    """What the app says of a run.

    model_bytes, sent_sha256: of the first file that clients fetch to train, which may hold more than the model; 0 and
    "" where the run begins without a model.

    schedule: None for an app that does its own training.
    tree_rows: training rows of all sites together, of an app of boosted trees; 0 for others.
    """

    parameters: int = 0
    model_bytes: int = 0
    sent_sha256: str = ""
    schedule: Schedule | None = None
    tree_rows: int = 0


def describe(run: PlannedRun, workers: Workers) -> Description:
    """Ask the app in a process of its own, which leaves the first model in the run's folder; raises RunFailed."""
    (report,) = workers.call("describe", _describe, run, silence=START_SECONDS)
    assert isinstance(report, Description)  # noqa: S101 - it reports nothing else
    return report


def _describe(report: ReportSink, run: PlannedRun) -> None:
    parameters, model_bytes, sent = 0, 0, ""
    schedule = None
    # Any Flower app will do: one that sends no model at first, and one that trains in its own way.
    with contextlib.suppress(AppError):
        first = first_of(run)
        first.sent.save(run.folder / INITIAL_FILE)
        model_bytes, sent = (run.folder / INITIAL_FILE).stat().st_size, sha256_file(run.folder / INITIAL_FILE)
        first.model.save(run.folder / INITIAL_FILE)
        parameters = sum(spec.size for spec in first.model.layout.specs)
    tree_rows = 0
    with contextlib.suppress(ConfigurationError):
        problem = Problem.of(run)
        if isinstance(problem, TreesProblem):
            tree_rows = len(problem.table(range(run.sites))[0])
        else:
            schedule = problem.schedule
    report(
        Description(
            parameters=parameters, model_bytes=model_bytes, sent_sha256=sent, schedule=schedule, tree_rows=tree_rows
        )
    )


# --- from the record to the result ----------------------------------------------------------------------------------


def result_of(run: PlannedRun, followed: FederatedOutcome, about: Description) -> RunResult:
    """All that is known without our own evaluation."""
    record = followed.record
    training = _trees(followed) if about.tree_rows else _training(followed, about.model_bytes)
    schedule = about.schedule if about.schedule and _keeps_to(about.schedule, training, followed.examples) else None
    simulated = _simulated(run, record, training, schedule)
    own = AppEvaluation.of(followed.results, evaluations_of(record))
    samples = _samples(training, {} if record.privacy else followed.examples)
    if about.tree_rows:  # each tree is of all rows
        samples = [about.tree_rows * number for number in range(1, len(training) + 1)]
    steps = steps_until(run.sites, training, schedule)
    curve = curve_of(run.sites, training, samples, steps, simulated, own)
    finished = record.status == "finished"
    model = run.folder / MODEL_FILE
    return run.result(
        status="finished" if finished else "failed",
        reason=record.reason if record.status else "the run ended without a word",
        aggregation=record.aggregation,
        parameters=about.parameters,
        samples=curve[-1].samples if curve else None,
        reported_examples=reported_examples(record, training, run.settings) if None in samples else None,
        steps=_steps(run.sites, training, schedule),
        sums=_sums(run.sites, training),
        seconds=sum(exchange.seconds for exchange in training),
        start_seconds=followed.start_seconds,
        processor_seconds=followed.processor_seconds,
        simulated_seconds=simulated[-1] if simulated else None,
        bytes_up=_total(run, [exchange.bytes_up for exchange in training]),
        bytes_down=_total(run, [exchange.bytes_down for exchange in training]),
        all_bytes_up={} if record.traffic is None else record.traffic.bytes_up,
        all_bytes_down={} if record.traffic is None else record.traffic.bytes_down,
        initial_sha256=_initial_sha256(run, followed, about),
        model_sha256=sha256_file(model) if finished and model.exists() else "",
        curve=curve,
        losses=followed.losses,
        failures=tuple(record.failures),
        privacy=record.privacy,
        epsilon_spent=record.epsilon_spent(),
        by_server=own.server,
    )


def _initial_sha256(run: PlannedRun, followed: FederatedOutcome, about: Description) -> str:
    """Of the first model that the clients had: its file alone, even if they were sent more with it."""
    first = next(filter(None, followed.models), "")
    return sha256_file(run.folder / INITIAL_FILE) if first and first == about.sent_sha256 else first


def evaluations_of(record: RunRecord) -> dict[int, Metrics]:
    """Round -> what its evaluation gave, as the exchange had it."""
    return {done.server_round: as_metrics(done.metrics) for done in record.exchanges if done.evaluates}


def _training(followed: FederatedOutcome, size: int) -> list[ExchangeDone]:
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


def _trees(followed: FederatedOutcome) -> list[ExchangeDone]:
    """What each tree took, as one training: the queries for its sums together, with the models that they bring."""
    trees: dict[int, ExchangeDone] = {}
    for one in followed.record.exchanges:
        if one.message_type != f"query.{GROW}":
            continue
        known = trees.get(one.server_round)
        up, down = (Counter(known.bytes_up), Counter(known.bytes_down)) if known else (Counter(), Counter())
        up.update(one.bytes_up)
        down.update(one.bytes_down)
        changes = {"seconds": one.seconds + (known.seconds if known else 0.0), "metrics": {}}
        trees[one.server_round] = one.model_copy(update={**changes, "bytes_up": dict(up), "bytes_down": dict(down)})
    return list(trees.values())


def curve_of(
    sites: int,
    training: Sequence[ExchangeDone],
    samples: Sequence[int | None],
    steps: Sequence[float | None],
    simulated: Sequence[float],
    own: AppEvaluation,
) -> tuple[CurvePoint, ...]:
    """A point for each round, and one for the first model where the app evaluated it.

    Args:
        samples, steps, simulated: at the end of each of the training exchanges; the last empty without such a clock.
    """
    seconds = accumulate(exchange.seconds for exchange in training)
    up = accumulate(sum(exchange.bytes_up.values()) / sites for exchange in training)
    down = accumulate(sum(exchange.bytes_down.values()) / sites for exchange in training)
    clock: Sequence[float | None] = simulated or [None] * len(training)
    first = own.rounds.get(0)
    begin = CurvePoint(round=0, steps=0.0 if None not in steps else None, simulated_seconds=0.0 if simulated else None)
    start = [] if first is None else [replace(begin, metrics=first)]
    points = [
        CurvePoint(
            round=exchange.server_round,
            samples=examples,
            steps=made,
            seconds=at,
            simulated_seconds=then,
            bytes_up=sent,
            bytes_down=received,
            metrics=own.rounds.get(exchange.server_round, {}),
            train_loss=number_of(as_metrics(exchange.metrics), metric_like(exchange.metrics, LOSS) or ""),
        )
        for exchange, examples, made, at, then, sent, received in zip(
            training, samples, steps, seconds, clock, up, down, strict=True
        )
    ]
    return (*start, *points)


def reported_examples(record: RunRecord, training: Sequence[ExchangeDone], settings: Mapping[str, Any]) -> int | None:
    """What the clients reported of all trainings together; None if they are private, or weights of another kind."""
    if record.privacy is not None or settings.get(WEIGHT_KEY, EXAMPLES) != EXAMPLES:
        return None
    if not all(exchange.examples for exchange in training):
        return None
    return sum(exchange.examples for exchange in training) or None


def _samples(training: Sequence[ExchangeDone], trained: TrainedExamples) -> list[int | None]:
    """Examples that the survivors took up to the end of each exchange; None from where nobody counted them."""
    totals: list[int | None] = []
    total: int | None = 0
    for exchange in training:
        counts = [trained.get(name, {}).get(_trained_in(exchange, name)) for name in exchange.survivors]
        known = [count for count in counts if count]
        total = total + sum(known) if total is not None and len(known) == len(counts) else None
        totals.append(total)
    return totals


def _trained_in(exchange: ExchangeDone, name: str) -> int:
    """The round in which a client was given the work whose update is in the sum."""
    return exchange.server_round - exchange.staleness.get(name, 0)


def _keeps_to(schedule: Schedule, training: Sequence[ExchangeDone], trained: TrainedExamples) -> bool:
    """Whether all clients took the examples that the run config says; own training code need not."""
    return all(
        trained.get(name, {}).get(_trained_in(exchange, name)) == schedule.own_samples(site_of(name))
        for exchange in training
        for name in exchange.survivors
    )


def _sums(sites: int, training: Sequence[ExchangeDone]) -> dict[str, int]:
    names = [worker_name(site) for site in range(sites)]
    return {name: sum(name in exchange.survivors for exchange in training) for name in names}


def _steps(sites: int, training: Sequence[ExchangeDone], schedule: Schedule | None) -> dict[str, int]:
    if schedule is None:
        return {}
    trainings = _sums(sites, training)
    return {name: count * schedule.own_steps(site_of(name))[1] for name, count in trainings.items()}


def steps_until(sites: int, training: Sequence[ExchangeDone], schedule: Schedule | None) -> tuple[float | None, ...]:
    """Optimizer steps of one worker up to the end of each exchange, mean over all; None without a known schedule."""
    if schedule is None:
        return (None,) * len(training)
    each = (sum(schedule.own_steps(site_of(name))[1] for name in exchange.survivors) / sites for exchange in training)
    return tuple(accumulate(each))


def _simulated(
    run: PlannedRun, record: RunRecord, training: Sequence[ExchangeDone], schedule: Schedule | None
) -> list[float]:
    """The simulated clock at the end of each training exchange; nothing without a network or a known schedule."""
    if run.network is None or run.cost is None or schedule is None:
        return []
    exchanges = [
        TimedExchange(
            server_round=exchange.server_round,
            up={site_of(name): exchange.bytes_up[name] for name in exchange.survivors},
            down={site_of(name): exchange.bytes_down[name] for name in exchange.survivors},
            staleness={site_of(name): age for name, age in exchange.staleness.items()},
        )
        for exchange in training
    ]
    if any(exchange.staleness for exchange in training):
        return buffered_seconds(schedule, exchanges, run.cost, run.network)
    return federated_seconds(schedule, exchanges, run.cost, run.network, secure=record.aggregation == "secure")


def _total(run: PlannedRun, exchanges: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {name: sum(exchange.get(name, 0) for exchange in exchanges) for name in run.site_names}
