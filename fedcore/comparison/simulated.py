"""A simulated run as a comparison of one mode: the same report, to merge with others.

Nobody evaluated its models but the app itself, and nobody counted examples with their repetitions; the report
leaves out what it is not told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedcore.comparison.app_evaluation import AppEvaluation
from fedcore.comparison.execution import reported
from fedcore.comparison.judging import JudgedBy, Known, choose
from fedcore.comparison.measure.sum_checks import PlainRounds, Which, check_sum
from fedcore.comparison.modes import MODES
from fedcore.comparison.modes.federated import curve_of, evaluations_of, reported_examples
from fedcore.comparison.report import Comparison, ModeTitle, machine
from fedcore.comparison.results import CurvePoint, RunResult, SumCheck
from fedcore.comparison.run import site_of
from fedcore.comparison.target import Target
from fedcore.comparison.workers.sum_checks import as_check
from fedcore.errors import ConfigurationError
from fedcore.flower.app import FlowerApp
from fedcore.flower.grid.training_means import MeanRecorder
from fedcore.monitoring.run_record import RunRecord
from fedcore.run.settings import JobSettings
from fedcore.simulation.workers.executor import ClientExecutor
from fedcore.wire.base import Scalar, moment


def comparison_of(
    record: RunRecord,
    results: Mapping[str, Any],
    *,
    app: str,
    clients: int,
    run_config: Mapping[str, Scalar],
    settings: Mapping[str, Any],
    changed: Sequence[str],
    seed: int,
    parameters: int = 0,
    target: Target | None = None,
) -> Comparison:
    """One run as a comparison.

    Args:
        results: as `fedcore.flower.results.results_of` has them.
        changed: keys of the run config that are otherwise than the app has them.
        seed: where the run config has none.
        parameters: of the model. Seconds are those of the exchanges alone, so that a run that went on after its end has
            them all; simulated seconds are those of the virtual clock. Bytes are means over the clients that had an
            update in a sum.
        target: how good a model is wanted; models are judged by its metric then, if there is one of that name.
    """
    own_seed = run_config.get("seed", seed)
    seed = own_seed if isinstance(own_seed, int) else seed
    result = _result(record, results, seed=seed, parameters=parameters, settings=settings)
    usual = JobSettings().to_mapping()
    metrics = reported([result])
    return Comparison(
        app=app,
        sites=clients,
        partition=str(run_config.get("partition", "")),
        seeds=(seed,),
        run_config=run_config,
        settings=settings,
        changed=(*changed, *(key for key, value in settings.items() if value != usual.get(key))),
        created=moment(time.time()),
        machine=machine(),
        modes=(ModeTitle(label=result.mode, kind=result.kind, title=MODES[result.kind].title, simulation=True),),
        runs=(result,),
        judged_by=_judged_by(metrics, target),
        own_evaluation=True,
        target=target,
    )


def simulated_checks(
    means: MeanRecorder,
    record: RunRecord,
    *,
    app: FlowerApp,
    run_config: Mapping[str, Scalar],
    settings: JobSettings,
    seed: int,
    executor: Callable[[], ClientExecutor],
) -> tuple[SumCheck, ...]:
    """Whether the first secure sum of a run and the last are the plain means, by one more round for each.

    Args:
        means: what the run recorded.
        executor: makes one that has run nothing yet.
    """
    own_seed = run_config.get("seed", seed)
    number = own_seed if isinstance(own_seed, int) else seed
    training = [exchange for exchange in record.exchanges if exchange.trains]

    def check(which: Which, clients: Sequence[str], fresh: ClientExecutor) -> SumCheck | None:
        """Of one sum. What it takes goes with it: each mean is a copy of the model in float64."""
        mean = means.first if which == "first" else means.last
        if mean is None:
            return None
        # Of those that were asked, some may have dropped out.
        nodes = tuple(sorted(site_of(name) + 1 for name in clients))
        answered = replace(mean, request=replace(mean.request, nodes=nodes))
        rounds = PlainRounds(app=app, run_config=dict(run_config), settings=settings, executor=fresh)
        verdict = check_sum(answered, None, rounds, which=which)
        return None if verdict is None else as_check(verdict, mean, which=which, mode="federated", seed=number)

    if not training or not means.recorded:
        return ()
    with executor() as fresh:
        checks = check("first", training[0].survivors, fresh), check("last", training[-1].survivors, fresh)
    return tuple(one for one in checks if one is not None)


def model_curve(record: RunRecord, results: Mapping[str, Any]) -> tuple[CurvePoint, ...]:
    """A point for each model that a run trained, and one for the first where the app evaluated it.

    Args:
        results: as for `comparison_of`, whose curve this is.
    """
    return _result(record, results, seed=0, parameters=0, settings={}).curve


def _judged_by(metrics: Known, target: Target | None) -> JudgedBy | None:
    if target is not None and target.metric in metrics:
        return JudgedBy(name=target.metric, better=target.better)
    return choose(None, metrics) if metrics else None


def check_report_folder(out: Path, *, force: bool) -> None:
    """Raise ConfigurationError if a report would replace another one without force, or anything else."""
    if out.exists() and not out.is_dir():
        raise ConfigurationError(f"--report: {out} is a file; name a folder", check="not-a-folder")
    if out.exists() and any(out.iterdir()) and not (force and (out / "report.json").is_file()):
        raise ConfigurationError(
            f"--report: {out} is not empty; choose another folder, or --force to replace a report in it",
            check="not-empty",
        )


def _result(
    record: RunRecord, results: Mapping[str, Any], *, seed: int, parameters: int, settings: Mapping[str, Any]
) -> RunResult:
    plain = record.aggregation == "plain"
    kind = "federated-plain" if plain else "federated-dp" if record.privacy is not None else "federated"
    training = [exchange for exchange in record.exchanges if exchange.trains]
    ends = record.virtual_ends() or []
    virtual = [end for exchange, end in zip(record.exchanges, ends, strict=False) if exchange.trains]
    own = AppEvaluation.of(results, evaluations_of(record))
    names = dict.fromkeys(name for exchange in training for name in exchange.survivors)
    unknown = [None] * len(training)
    return RunResult(
        mode=kind,
        kind=kind,
        seed=seed,
        status="finished" if record.status == "finished" else "failed",
        reason=record.reason,
        aggregation=record.aggregation,
        parameters=parameters,
        reported_examples=reported_examples(record, training, settings),
        seconds=sum(exchange.seconds for exchange in training),
        wall_seconds=record.seconds(),
        simulated_seconds=virtual[-1] if virtual else None,
        bytes_up={name: sum(exchange.bytes_up.get(name, 0) for exchange in training) for name in names},
        bytes_down={name: sum(exchange.bytes_down.get(name, 0) for exchange in training) for name in names},
        curve=curve_of(len(names), training, unknown, unknown, virtual, own),
        failures=tuple(record.failures),
        privacy=record.privacy,
        epsilon_spent=record.epsilon_spent(),
        by_server=own.server,
    )
