"""Carries out the runs of a comparison one after another; a finished run is not run again.

`execute_run` is the frame that all modes have in common: events from start to end, workers that end with the run, the
evaluation of its models, and the last model, which stays.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from fedcore.comparison.app_probe import AppFacts, find_facts
from fedcore.comparison.design.course import JobOfSeeds, by_mode
from fedcore.comparison.design.seeds import further_seeds
from fedcore.comparison.folder import OutFolder
from fedcore.comparison.judging import Known, choose, known_by_name
from fedcore.comparison.modes import MODES, Trained, in_report
from fedcore.comparison.plan import PARTITION, SEED, CompareJob, plan, plan_trials
from fedcore.comparison.report import Comparison, ModeTitle, machine
from fedcore.comparison.results import RESULT_FILE, RunResult, stored_precision
from fedcore.comparison.run import MODEL_FILE, PlannedRun
from fedcore.comparison.workers.models import evaluate_rounds
from fedcore.comparison.workers.processes import Workers
from fedcore.comparison.workers.sum_checks import check_runs
from fedcore.errors import ConfigurationError, FedcoreError
from fedcore.run.settings import JobSettings, planned_rounds
from fedcore.state.files import sha256_file
from fedcore.system.files import private_folder
from fedcore.wire.base import moment
from fedcore.wire.events import EventSink, ExchangeDone, RunEnded, RunStarted
from fedcore.wire.operator import RunStatus

_TUNED: Final = "each mode's own"
WARM_FOLDER: Final = "federation"
"""For the processes that serve several runs."""

Runner: TypeAlias = Callable[[PlannedRun, EventSink], RunResult]
"""What carries out one run; raises FedcoreError or OSError if it cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """A run that is about to begin.

    number: in the order of execution, from 1 on.
    seconds_left: of all runs from this one on, None if unknown.
    """

    run: PlannedRun
    number: int
    total: int
    seconds_left: float | None


def _unseen(result: RunResult) -> None:
    del result


def _untold(line: str) -> None:
    del line


Watch: TypeAlias = Callable[[RunStart], AbstractContextManager[EventSink]]
"""Called before each run; the run's events go to what it opens."""


def execute_comparison(
    job: CompareJob,
    watch: Watch,
    *,
    force: bool = False,
    drop: Callable[[str], None] | None = None,
    plain_rounds: bool = True,
    tell: Callable[[str], None] = _untold,
    watts: float | None = None,
    facts: AppFacts | None = None,
) -> Comparison:
    """Carry out what `job` asks for and was not done before; the results stay in its folder.

    Raises ConfigurationError before the first run for whatever cannot work.

    Args:
        force: replace another comparison in the folder, or the same one.
        drop: leave out the modes that the app cannot be trained in, and tell it which and why; it is also told of
            private modes that the job does not have.
        plain_rounds: check secure sums against plain means, by extra rounds if it takes some.
        tell: called with lines on what follows, and why.
        watts: of a core, for an estimate of energy; None for no estimate.
        facts: of the app, if they are known.
    """
    comparison, _ = carry_out(
        job, watch, force=force, drop=drop, plain_rounds=plain_rounds, tell=tell, watts=watts, facts=facts
    )
    return comparison


def carry_out(
    job: CompareJob,
    watch: Watch,
    *,
    force: bool = False,
    drop: Callable[[str], None] | None = None,
    plain_rounds: bool = True,
    tell: Callable[[str], None] = _untold,
    watts: float | None = None,
    facts: AppFacts | None = None,
) -> tuple[Comparison, tuple[PlannedRun, ...]]:
    """As `execute_comparison`, with the runs in the order of the results, each with its folder."""
    if watts is not None and not 0 <= watts < math.inf:
        raise ConfigurationError(f"--energy is a number of watts a core, not {watts:g}", check="watts")
    folder = OutFolder(job.out)
    planned = plan(job)
    plan_trials(job)
    folder.check(job, force=force)
    facts = facts or (None if force else folder.facts()) or find_facts(planned[0])
    facts.check_design(job)
    if facts.metrics:
        choose(job.metric, facts.metrics)
    possible = job
    left_out: tuple[str, ...] = ()
    if drop is not None:
        possible = replace(job, modes=tuple(mode for mode in job.modes if facts.allows(mode)))
        left_out = (*facts.refusals(job.modes), *_private_ones(job))
        for reason in left_out:
            drop(reason)
    remaining = plan(possible)
    facts.check([run.chosen for run in remaining])
    facts.check_strategies(remaining)
    with folder.opened(job, force=force), ModeRunner(job.out) as runner:
        folder.keep_facts(facts)

        def look(result: RunResult) -> None:
            check_metric(job, facts, result)

        seeds = JobOfSeeds(facts, lambda runs: execute_runs(runs, runner, watch, on_result=look))
        runs, results = seeds.carried(possible)
        if job.more_seeds and isinstance(job.config().get(SEED), int):
            further, why = further_seeds(runs[0].seed, results, trials=seeds.trial_seconds)
            tell(why)
            if further:
                more = seeds.carried(replace(possible, seeds=further), first=len(runs) + 1)
                runs, results = by_mode(possible, (*runs, *more[0]), (*results, *more[1]))
    comparison = replace(build_comparison(possible, runs, results, facts), left_out=left_out, watts=watts)
    return replace(comparison, sum_checks=check_runs(runs, results)) if plain_rounds else comparison, runs


def _private_ones(job: CompareJob) -> list[str]:
    """Modes that need settings which nobody can choose for an app, each with what to do."""
    names = {mode.kind for mode in job.modes}
    why = "it needs dp-epsilon or dp-noise-multiplier: name it in --modes, and set one of them"
    return [f"{name}: {why}" for name, mode in MODES.items() if mode.private and name not in names]


def check_metric(job: CompareJob, facts: AppFacts, result: RunResult) -> None:
    """Raise ConfigurationError for a metric that the app's own evaluation does not report, as soon as that is known."""
    if job.metric is None or facts.metrics or result.status == "failed" or not result.metrics:
        return
    try:
        choose(job.metric, reported([result]))
    except ConfigurationError as error:
        advice = "runs that finished are kept, and the same command with another --metric goes on"
        raise ConfigurationError(f"{error}; {advice}", check="no-such-metric") from None


def reported(results: Sequence[RunResult]) -> Known:
    """The metrics of the last models that the app reports itself.

    Those of its ServerApp come first: they are of the same examples in every mode.
    """
    done = [one for one in results if one.status == "finished"]
    names = {name for one in done for name in one.by_server}
    metrics = [name for one in done for name in one.metrics]
    server = known_by_name(name for name in metrics if name in names)
    return {**server, **known_by_name(name for name in metrics if name not in names)}


def execute_runs(
    runs: Sequence[PlannedRun], runner: Runner, watch: Watch, *, on_result: Callable[[RunResult], None] = _unseen
) -> tuple[RunResult, ...]:
    """The results of all runs, in their order.

    A run that has finished before keeps its result; one that failed is run again. A run that cannot be carried out is
    a result with status "failed", and the next one begins.

    Args:
        on_result: called with each of them, before the next run begins.
    """
    results = finished(runs)
    for result in results.values():
        on_result(result)
    for position, (number, run) in enumerate(in_groups(runs), start=1):
        if number in results:
            continue
        start = RunStart(run=run, number=position, total=len(runs), seconds_left=seconds_left(runs, results))
        with watch(start) as emit:
            results[number] = _into_folder(run, runner, emit)
        on_result(results[number])
    return tuple(results[number] for number in range(len(runs)))


def finished(runs: Sequence[PlannedRun]) -> dict[int, RunResult]:
    """Results that are there already, by the number of their run."""
    results = {}
    for number, run in enumerate(runs):
        if (run.folder / RESULT_FILE).is_file():
            result = RunResult.load(run.folder)
            if result.status == "finished":
                results[number] = result
    return results


def in_groups(runs: Sequence[PlannedRun]) -> list[tuple[int, PlannedRun]]:
    """The runs with their numbers, those that the same processes can serve one after the other."""
    groups = list(dict.fromkeys(run.warm_group or run.label for run in runs))
    return sorted(enumerate(runs), key=lambda numbered: groups.index(numbered[1].warm_group or numbered[1].label))


def _into_folder(run: PlannedRun, runner: Runner, emit: EventSink) -> RunResult:
    """One run in a fresh folder; its result is saved there."""
    shutil.rmtree(run.folder, ignore_errors=True)
    run.folder.mkdir(parents=True)
    started = time.monotonic()
    try:
        result = runner(run, emit)
    except (FedcoreError, OSError) as error:
        result = run.result(status="failed", reason=str(error), wall_seconds=time.monotonic() - started)
    result = replace(result, precision=stored_precision(run.folder))
    result.save(run.folder)
    return result


def seconds_left(runs: Sequence[PlannedRun], results: Mapping[int, RunResult]) -> float | None:
    """An estimate: a run takes as long as those of its mode did, or else as all did."""
    by_label: dict[str, list[float]] = {}
    for result in results.values():
        by_label.setdefault(result.mode, []).append(result.wall_seconds)
    if not by_label:
        return None
    overall = fmean(seconds for group in by_label.values() for seconds in group)
    remaining = (run.label for number, run in enumerate(runs) if number not in results)
    return sum(fmean(by_label.get(label, [overall])) for label in remaining)


def build_comparison(
    job: CompareJob, runs: Sequence[PlannedRun], results: Sequence[RunResult], facts: AppFacts
) -> Comparison:
    """What the report is made from."""
    fixed = {key: values[0] for key, values in job.sweep.items() if len(values) == 1}
    if job.tuning is not None:
        fixed |= dict.fromkeys(job.tuning.values, _TUNED)
    config = {key: fixed.get(key, value) for key, value in job.config().items()}
    settings = {key: fixed.get(key, value) for key, value in job.app.settings.to_mapping().items()}
    metrics = facts.metrics or reported(results)
    return Comparison(
        app=job.app.name,
        sites=job.sites,
        partition=str(fixed.get(PARTITION, config.get(PARTITION, ""))),
        seeds=tuple(dict.fromkeys(run.seed for run in runs)),
        run_config=config,
        settings=settings,
        changed=(*_others(config, job.app.run_config), *_others(settings, JobSettings().to_mapping())),
        created=moment(time.time()),
        machine=machine(),
        modes=tuple(ModeTitle(label=one.label, kind=one.mode.name, title=one.mode.title) for one in job.modes),
        runs=tuple(results),
        # If nothing was evaluated there is nothing to judge by, and the report says so.
        judged_by=choose(job.metric, metrics) if metrics else None,
        own_evaluation=not facts.metrics,
        network=job.network,
        cost=runs[0].cost,
        split=facts.split,
        definitions={**facts.definitions, **job.app.metrics},
        target=job.budget.target,
        budget=job.budget.text,
        tune={} if job.tuning is None else job.tuning.values,
        validation=None if job.tuning is None else job.tuning.share,
    )


def _others(values: Mapping[str, Any], usual: Mapping[str, Any]) -> list[str]:
    """The keys whose value is not the usual one."""
    return [key for key, value in values.items() if value != usual.get(key)]


# --- one run ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ModeRunner:
    """Carries out runs; the processes of a mode's warm group stay for the next run that they can serve.

    Use as a context manager: leaving it ends all processes.

    folder: of the whole comparison.
    """

    folder: Path
    _stack: ExitStack = field(default_factory=ExitStack)
    _group: str = ""
    _warm: AbstractContextManager[Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def __call__(self, run: PlannedRun, emit: EventSink) -> RunResult:
        """Carry out one run; raises FedcoreError or OSError if it cannot begin."""
        if run.warm_group != self._group:
            # Idle processes would take memory and time from the workers of this run.
            self._stack.close()
            self._group = run.warm_group
            self._warm = self._start_group(run) if self._group else None
        return execute_run(run, emit, self._warm)

    def _start_group(self, run: PlannedRun) -> AbstractContextManager[Any]:
        folder = self.folder / WARM_FOLDER
        # What an interrupted start, or another group, left there: keys and a port of its own.
        shutil.rmtree(folder, ignore_errors=True)
        if run.data_dir is not None and folder.resolve().is_relative_to(run.data_dir.resolve()):
            folder = self._stack.enter_context(private_folder())  # user code may read the data, so no keys lie there
        processes = run.mode.warm_processes(folder)
        self._stack.enter_context(processes)
        return processes


def execute_run(run: PlannedRun, emit: EventSink, warm: AbstractContextManager[Any] | None = None) -> RunResult:
    """Carry out one run of any mode; whatever fails, the result says it.

    Args:
        warm: the processes of its group.
    """
    began = time.monotonic()
    run.folder.mkdir(parents=True, exist_ok=True)
    result = run.result()
    if not run.mode.tells_events:
        emit(RunStarted(app=run.app.name, aggregation="none", rounds=planned_rounds(run.config)))
    with Workers(run.folder, run.environment()) as workers:
        try:
            trained: Trained = run.mode.train(run, workers, emit, warm)
            result = _with_processor_seconds(trained.result, workers)
            trained = replace(trained, result=result)
            result = _evaluated(run, trained, workers)
        except FedcoreError as error:
            result = replace(result, status="failed", reason=result.reason or str(error))
    result = _with_last_model(run, result)
    if not run.mode.tells_events:
        if result.status == "finished":
            emit(_evaluation(result))
        emit(RunEnded(status=RunStatus(result.status), reason=result.reason))
    return replace(result, wall_seconds=time.monotonic() - began)


def _with_processor_seconds(result: RunResult, workers: Workers) -> RunResult:
    """The result with what its workers took, the evaluation of its models left out; a federation knows its own."""
    if result.processor_seconds is not None or in_report(result.kind).protection:
        return result
    return replace(result, processor_seconds=sum(workers.processor_seconds.values()) or None)


def _evaluated(run: PlannedRun, trained: Trained, workers: Workers) -> RunResult:
    """The result with what its models give, as far as it was not known; the last models get their name."""
    result, last = trained.result, max(trained.models, default=0)
    if not last:
        return result
    evaluations = evaluate_rounds(run, workers, trained.models, trained.tested)
    curve = tuple(
        replace(point, metrics=evaluations[point.round].metrics) if point.round in evaluations else point
        for point in result.curve
    )
    if result.status == "failed":
        return replace(result, curve=curve)
    # In mode local, a site that was lost has no model in the last round.
    for path in set(trained.models[last].values()):
        os.replace(path, path.with_name(MODEL_FILE))
    return replace(result, curve=curve, sites=evaluations[last].sites, bootstrap=evaluations[last].bootstrap)


def _with_last_model(run: PlannedRun, result: RunResult) -> RunResult:
    """The result with the hash of the last model; no other model stays but the first."""
    for path in [*run.folder.glob("round-*.safetensors"), *run.folder.glob("*/round-*.safetensors")]:
        path.unlink()
    model = run.folder / MODEL_FILE
    if result.status == "failed":
        model.unlink(missing_ok=True)
    return replace(result, model_sha256=sha256_file(model) if model.exists() else "")


def _evaluation(result: RunResult) -> ExchangeDone:
    """What the last model gave, as the events of a run tell it."""
    return ExchangeDone(
        exchange=len(result.curve),
        server_round=result.curve[-1].round,
        message_type="evaluate",
        aggregation="none",
        survivors=[site.site for site in result.sites] or sorted(result.bytes_up),
        examples=sum(site.examples for site in result.sites),
        metrics={name: list(v) if isinstance(v, tuple) else v for name, v in result.metrics.items()},
        seconds=0.0,
    )
