"""The command `fedcore privacy`: what each epsilon costs in accuracy on an app, by simulation."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from fedcore.cli.main import AppFolder, AsJson, DataFolder, RunConfig, Settings, print_json
from fedcore.cli.simulate import Clients, Engine, NumberOfWorkers, PerRound
from fedcore.cli.simulation_options import SEED, SimulationOptions, SweepPoint
from fedcore.errors import ConfigurationError
from fedcore.system.standard_output import user_output_to_stderr

if TYPE_CHECKING:
    from fedcore.run.settings import JobSettings
    from fedcore.simulation.workers.executors import Engine as EngineName
    from fedcore.wire.events import RunEvent

Epsilons = Annotated[
    list[float] | None,
    typer.Option("--epsilon", min=0.0, help="An epsilon of the whole run; repeatable.  \\[default: 2 and 8]"),
]
ClipNorms = Annotated[
    list[float] | None,
    typer.Option(
        "--clip-norm",
        min=0.0,
        help="A bound on updates; repeatable.  \\[default: the app's, or the median norm of an update without privacy]",
    ),
]
Seeds = Annotated[
    str, typer.Option(help="Runs of each row: a number of seeds, counted from the app's own, or a list: 42,43.")
]
MetricName = Annotated[
    str,
    typer.Option(
        help="The metric to compare.  \\[default: that of the setting best-model, or the app's accuracy, AUC, "
        "concordance, error or loss]"
    ),
]

_MAIN: Final = ("acc", "auc", "concordance", "c_index", "f1", "r2", "rmse", "mae", "perplexity", "loss")
"""Parts of the names of metrics that say how good a model is, the best one first."""


def privacy(
    app: AppFolder,
    epsilon: Epsilons = None,
    clip_norm: ClipNorms = None,
    metric: MetricName = "",
    seeds: Seeds = "3",
    clients: Clients = None,
    per_round: PerRound = None,
    engine: Engine = "process",
    workers: NumberOfWorkers = 0,
    run_config: RunConfig = None,
    set_: Settings = None,
    data_dir: DataFolder = None,
    as_json: AsJson = False,
) -> None:
    """Show what differential privacy costs in accuracy: train an app without it, and with each epsilon.

    Example: fedcore privacy examples/digits --clients 40 --epsilon 2 --epsilon 8

    It is a simulation, which spends nobody's budget. The noise is that of a real run with so many clients and
    num-server-rounds rounds; models are evaluated without noise, which clients of a private run would not do.
    """
    from fedcore.simulation.workers.executors import checked_engine

    if data_dir is not None:
        os.environ["FEDCORE_DATA"] = str(data_dir.absolute())
    options = SimulationOptions.of(app, clients, run_config, set_, per_round)
    trials = _Trials(options=options, engine=checked_engine(engine), workers=workers, as_json=as_json)
    result = trials.run(epsilon or [2.0, 8.0], clip_norm or [], metric, seeds)
    if as_json:
        print_json(result)
    else:
        _print(result)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """One run. metrics: of the last evaluation. norms: of the updates, if they were measured."""

    metrics: Mapping[str, float]
    spent: float | None
    rounds: int
    noise_multiplier: float | None
    norms: Sequence[float]


@dataclass(slots=True, kw_only=True)
class _Trials:
    options: SimulationOptions
    engine: EngineName
    workers: int
    as_json: bool

    def run(self, epsilons: Sequence[float], clip_norms: Sequence[float], metric: str, seeds: str) -> dict[str, Any]:
        """All runs, as plain JSON; raises ConfigurationError before the first for what cannot work."""
        from fedcore.comparison.plan import parse_seeds
        from fedcore.run.privacy_budget import privacy_plan
        from fedcore.run.settings import planned_rounds
        from fedcore.simulation.privacy_trial import without_privacy

        config, settings = self.options.run_config, self.options.settings
        rounds = planned_rounds(config)
        if rounds is None:
            raise ConfigurationError(
                "fedcore privacy needs num-server-rounds in the run config: epsilon is for all rounds"
            )
        numbers = parse_seeds(seeds, config.get(SEED, 0))
        for one in epsilons:
            privacy_plan(_private(settings, one, 1.0, rounds))
        total = len(numbers) * (1 + len(epsilons) * max(1, len(clip_norms)))
        begin = _announcer(total)
        open_runs = [
            self._one(without_privacy(settings), seed, begin("without privacy", seed), measure=True) for seed in numbers
        ]
        metric = metric or self._main_metric(open_runs[0].metrics)
        rows = [_row(None, None, metric, open_runs, None)]
        for clip in clip_norms or [settings.clip_norm or _rounded(median(n for one in open_runs for n in one.norms))]:
            for one in epsilons:
                private = _private(settings, one, clip, rounds)
                name = f"epsilon {one:g}, clip-norm {clip:g}"
                runs = [self._one(private, seed, begin(name, seed)) for seed in numbers]
                rows.append(_row(one, clip, metric, runs, rows[0]))
        return {
            "app": self.options.app.name, "clients": self.options.clients, "rounds": rounds, "seeds": list(numbers),
            "delta": settings.dp_delta, "metric": metric, "table": rows,
        }  # fmt: skip

    def _main_metric(self, metrics: Mapping[str, float]) -> str:
        from fedcore.monitoring.run_record import metric_like
        from fedcore.run.model_selection import BestRule

        rule = BestRule.parse(self.options.settings.best_model)
        likely = [rule.metric if rule else None, *(metric_like(metrics, word) for word in _MAIN), *sorted(metrics)]
        for name in likely:
            if name in metrics:
                return str(name)
        raise ConfigurationError(
            f"{self.options.app.name} evaluates nothing, so that there is no accuracy to compare: set "
            "fraction-evaluate, or give its ServerApp an evaluate_fn"
        )

    def _one(self, settings: JobSettings, seed: int, warned: set[str], *, measure: bool = False) -> _Outcome:
        from rich.console import Console

        from fedcore.comparison.app_evaluation import AppEvaluation
        from fedcore.flower.output import quiet_flower
        from fedcore.monitoring.progress import ProgressView
        from fedcore.monitoring.run_record import RunRecord
        from fedcore.simulation.privacy_trial import PrivacyTrial, UpdateMeter
        from fedcore.simulation.workers.executors import make_executor
        from fedcore.simulation.workers.progress import ProgressExecutor
        from fedcore.system.files import private_folder
        from fedcore.wire.events import Warned

        options = replace(self.options, settings=settings).at(SweepPoint(seed=seed, values={}))
        record, started = RunRecord(), time.monotonic()
        quiet_flower()
        with (
            make_executor(self.engine, options.app, options.clients, self.workers, 0) as executor,
            private_folder() as folder,
            user_output_to_stderr(),
            ProgressView(Console(stderr=True), "simulated", clients=options.clients) as view,
        ):
            meter = UpdateMeter(ProgressExecutor(executor, view.works))

            def emit(event: RunEvent) -> None:
                record.add(event, time.monotonic() - started)
                if not isinstance(event, Warned):
                    view.show(event)
                elif event.line not in warned:
                    warned.add(event.line)
                    view.show(event)

            trial = PrivacyTrial(
                app=options.app, clients=options.clients, run_config=options.run_config, settings=settings, seed=seed,
                folder=folder, emit=emit, executor=meter if measure else meter.executor,
            )  # fmt: skip
            trial.run()
        evaluated = AppEvaluation.of(trial.results, {}).rounds
        last = evaluated[max(evaluated)] if evaluated else record.final_metrics()
        return _Outcome(
            metrics={name: float(value) for name, value in last.items() if isinstance(value, int | float)},
            spent=record.epsilon_spent(),
            rounds=record.rounds(),
            noise_multiplier=record.privacy.noise_multiplier if record.privacy else None,
            norms=meter.norms,
        )


def _announcer(total: int) -> Callable[[str, int], set[str]]:
    """Says which run begins; gives the warnings that were shown, which are the same for each."""
    warnings: set[str] = set()
    count = 0

    def begin(name: str, seed: int) -> set[str]:
        nonlocal count
        count += 1
        typer.echo(f"run {count} of {total}: {name}, seed {seed}", err=True)
        return warnings

    return begin


def _private(settings: JobSettings, epsilon: float, clip: float, rounds: int) -> JobSettings:
    best = settings.best_model if settings.dp_metric_bound else ""
    return replace(
        settings, dp_epsilon=epsilon, dp_noise_multiplier=0.0, dp_rounds=rounds, clip_norm=clip, best_model=best
    )


def _rounded(norm: float) -> float:
    """To two digits, as a person would write it."""
    return float(f"{norm:.2g}")


def _row(
    epsilon: float | None, clip: float | None, metric: str, runs: Sequence[_Outcome], without: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Mean and spread over the seeds, as plain JSON. without: the row without privacy."""
    from fedcore.comparison.report.summary import Spread

    spread = Spread.of(run.metrics.get(metric) for run in runs)
    if spread is None:
        names = ", ".join(sorted(runs[0].metrics)) or "nothing"
        raise ConfigurationError(f"--metric: the app's evaluation reports no {metric!r}; there is {names}")
    return {
        "epsilon": epsilon, "clip_norm": clip, "noise_multiplier": runs[0].noise_multiplier,
        "epsilon_spent": max((run.spent for run in runs if run.spent is not None), default=None),
        "rounds": runs[0].rounds, "metric": {"mean": spread.mean, "sd": spread.sd, "n": spread.n},
        "difference": None if without is None else spread.mean - without["metric"]["mean"],
    }  # fmt: skip


def _print(result: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console, best = Console(highlight=False, soft_wrap=True), result["table"][-1]
    table = Table("epsilon", "clip-norm", "noise multiplier", result["metric"], "difference", box=None)
    for row in result["table"]:
        table.add_row(*_cells(row))
    console.print(
        f"{result['app']}: {result['clients']} clients, {result['rounds']} rounds, delta {result['delta']:g}, "
        f"seed{'s' if len(result['seeds']) > 1 else ''} {', '.join(map(str, result['seeds']))}"
    )
    console.print(table)
    console.print(
        f"the last row as settings: clip-norm={best['clip_norm']:g} dp-epsilon={best['epsilon']:g} "
        f"dp-rounds={result['rounds']}"
    )


def _cells(row: Mapping[str, Any]) -> Iterable[str]:
    sd = row["metric"]["sd"]
    value = f"{row['metric']['mean']:.4f}" + ("" if sd is None else f" ± {sd:.4f}")
    if row["epsilon"] is None:
        return ("none", "-", "-", value, "-")
    return (
        f"{row['epsilon']:g}", f"{row['clip_norm']:g}", f"{row['noise_multiplier']:g}", value,
        f"{row['difference']:+.4f}",
    )  # fmt: skip
