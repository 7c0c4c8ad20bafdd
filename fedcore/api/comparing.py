"""`fedcore.compare`: train one app in several modes, and the result."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from fedcore.api.arguments import Progress, chosen_config, progress_sink
from fedcore.api.result import OutputFolder
from fedcore.api.showing import axes_or_new, html_table, metrics_to_plot
from fedcore.errors import ConfigurationError, RunFailed, UnknownKey
from fedcore.state import ModelState
from fedcore.system.files import check_own_folder
from fedcore.wire.base import Scalar

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

    from fedcore.comparison.execution import RunStart
    from fedcore.comparison.plan import CompareJob
    from fedcore.comparison.report import Comparison
    from fedcore.comparison.results import RunResult
    from fedcore.flower.memory_app import AppLike
    from fedcore.wire.events import EventSink

_FACTS: Final = ("samples", "seconds", "simulated_seconds", "bytes_up", "bytes_down")


def compare(
    app: AppLike,
    *,
    modes: str | Sequence[str] = ("federated", "centralized"),
    clients: int = 4,
    rounds: int | None = None,
    seeds: int | Sequence[int] | None = None,
    partition: str = "",
    network: str = "none",
    metric: str = "",
    budget: str = "",
    tune: Mapping[str, Sequence[Scalar]] | None = None,
    validation: float = 0.2,
    plain_check: bool = True,
    energy: float | None = None,
    run_config: Mapping[str, Scalar] | None = None,
    settings: Mapping[str, Scalar | Sequence[Scalar]] | None = None,
    out: str | Path | None = None,
    force: bool = False,
    data_dir: str | Path | None = None,
    progress: Progress = True,
) -> ComparisonResult:
    """Train the same app in several modes, each in processes of its own, and return them side by side.

        result = fedcore.compare("examples/digits", modes=["federated", "centralized", "local"], seeds=2)
        result.plot()

    A mode that fails is in the result, with its reason; the others go on. Raises ConfigurationError for what cannot
    work, before anything is trained. Ctrl-C ends all processes.

    Args:
        app: the folder of an app; an object of this process cannot be handed to others.
        modes: as `fedcore compare --list-modes` names them, with their options in brackets; "all" for those that the
            app can be trained in.
        clients: how many sites.
        rounds: short for `num-server-rounds` of the run config.
        seeds: how many from the app's own on, or which; by default 5 if one takes less than a minute, else 1.
        partition: how the app divides its data.
        network: also estimate the time over one, "lan" or "wan", say.
        metric: what models are judged by, as in "eval_acc:max".
        budget: what all modes have equally much of, "examples", "steps", "seconds", "seconds:60" or
            "target:accuracy:0.9"; by default examples, with the models at equal steps next to them.
        tune: values that each mode chooses from on validation data.
        validation: the share of each site's training examples that is validation data then.
        plain_check: train a round or two of each secure mode again, to check that its sums are the plain means.
        energy: also estimate energy, with so many watts a core.
        run_config: over `[tool.flwr.app.config]`.
        settings: of the run config, of modes, or of `[tool.fedcore]`; of a list each value is tried.
        out: keep everything in this folder, where the same call goes on after it was interrupted; None for a folder
            that goes with the result.
        force: replace an earlier comparison there.
        progress: as in `simulate`.
    """
    from fedcore.comparison.execution import carry_out
    from fedcore.comparison.plan import ALL_MODES
    from fedcore.comparison.report import write_report

    temporary = OutputFolder() if out is None else None
    folder = temporary.path / "comparison" if temporary is not None else Path(out or "").expanduser().absolute()
    chosen = modes if isinstance(modes, str) else ",".join(modes)
    job = _job(
        app, chosen, clients, rounds, seeds, partition, network, metric, run_config, settings, folder, data_dir
    )  # fmt: skip
    job = _designed(job, budget, tune, validation)

    @contextlib.contextmanager
    def watch(start: RunStart) -> Iterator[EventSink]:
        with progress_sink(progress, f"{start.number}/{start.total} {start.run.label}") as emit:
            yield emit

    with temporary or contextlib.nullcontext(), _unguarded_scripts():
        comparison, runs = carry_out(
            job,
            watch,
            force=force,
            drop=(lambda reason: None) if chosen == ALL_MODES else None,
            plain_rounds=plain_check,
            watts=energy,
        )
    write_report(comparison, folder)
    return ComparisonResult(
        report=comparison, folder=folder, runs=tuple(run.folder for run in runs), temporary=temporary
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ComparisonResult:
    """Several modes of one app, side by side.

    report: everything that report.json says.
    folder: with report.html, models and logs; a temporary one goes with this object, and `save` keeps it.
    runs: the folder of each run that was planned.
    """

    report: Comparison
    folder: Path
    runs: tuple[Path, ...] = ()
    temporary: OutputFolder | None = None

    @property
    def history(self) -> pandas.DataFrame:
        """One row for each evaluated round, indexed by mode, seed and round: metrics, samples, seconds, bytes.

        What was swept over is in columns of its own, before the metrics.
        """
        rows = [
            {**_which(run), "round": point.round, **run.point, **point.metrics, **_facts(point)}
            for run in self.report.runs
            for point in run.curve
        ]
        return _table(rows, ("mode", "seed", "round"))

    @property
    def metrics(self) -> pandas.DataFrame:
        """One row for each run, indexed by mode and seed: status, the metrics of its last model, seconds, bytes."""
        rows = [
            {
                **_which(run),
                **run.point,
                "status": run.status,
                **run.metrics,
                **(_facts(run.curve[-1]) if run.curve else {}),
                **({"epsilon": run.epsilon_spent} if run.epsilon_spent is not None else {}),
            }
            for run in self.report.runs
        ]
        return _table(rows, ("mode", "seed"))

    @property
    def failed(self) -> dict[str, str]:
        """What failed, by mode and seed, and why."""
        return {f"{run.mode}, seed {run.seed}": run.reason for run in self.report.runs if run.status == "failed"}

    def model(self, mode: str, seed: int | None = None) -> ModelState:
        """The last model of a mode; of several seeds the first, unless it is named.

        Raises UnknownKey for a mode that was not compared, ConfigurationError if it left no single model.
        """
        labels = {run.mode for run in self.report.runs}
        if mode not in labels:
            raise UnknownKey(mode, labels, "the modes that were compared")
        for run, folder in zip(self.report.runs, self.runs, strict=False):
            path = folder / "model.safetensors"
            if run.mode == mode and seed in (None, run.seed) and path.exists():
                return ModelState.open(path)
        raise ConfigurationError(f"{mode} left no single model; what it left is in {self.folder}")

    def plot(self, metric: str = "", *, ax: Axes | None = None) -> Axes:
        """Draw a metric over the rounds, by default the one that models are judged by.

        Each mode, and each of its points of a sweep, has a line: the mean of its seeds, with a band of one
        standard deviation.

        Raises RunFailed if nothing ran, UnknownKey for a metric that nothing reported.
        """
        from matplotlib.ticker import MaxNLocator

        frame = self.history
        if frame.empty and self.failed:
            raise RunFailed("; ".join(f"{which} failed: {reason}" for which, reason in self.failed.items()))
        judged = self.report.judged_by
        names = [metric] if metric else [judged.name] if judged is not None and judged.name in frame else []
        (name,) = metrics_to_plot(frame, names, (*_FACTS, *self.report.sweeps))
        axes = axes_or_new(ax)
        for label, values in self._lines(frame, name):
            by_round = values.groupby(level="round")
            middle, spread = by_round.mean(), by_round.std()
            (line,) = axes.plot(middle.index, middle, marker="o" if len(middle) < 25 else "", label=label)
            axes.fill_between(
                middle.index, middle - spread, middle + spread, color=line.get_color(), alpha=0.2, linewidth=0
            )
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel(name)
        axes.set_title(f"{self.report.app}, {self.report.divided}")
        axes.legend(frameon=False)
        return axes

    def _lines(self, frame: pandas.DataFrame, name: str) -> Iterator[tuple[str, pandas.Series[Any]]]:
        """A column of `history` for each mode, and for each of its points of a sweep."""
        for mode, point in dict.fromkeys((run.mode, tuple(run.point.items())) for run in self.report.runs):
            rows = frame[frame.index.get_level_values("mode") == mode]
            for key, value in point:
                rows = rows[rows[key] == value]
            if not (values := rows[name].dropna()).empty:
                yield ", ".join([mode, *(f"{key}={value}" for key, value in point)]), values

    def save(self, folder: str | Path, *, force: bool = False) -> Path:
        """Copy the whole folder, report.html in it, to another place; raises ConfigurationError if one is there.

        Args:
            force: replace a comparison that is there; a folder with anything else in it stays.
        """
        target = Path(folder).expanduser().absolute()
        if target.exists() and not force:
            raise ConfigurationError(f"{target} exists already; name another folder, or replace it with force=True")
        from fedcore.comparison.folder import JOB_FILE, OWN_ENTRIES

        source = self.folder.resolve()
        if target.resolve().is_relative_to(source) or source.is_relative_to(target.resolve()):
            raise ConfigurationError(f"{target} is where this comparison is; name another folder", check="same-folder")
        check_own_folder(target, OWN_ENTRIES, mark=JOB_FILE, option="folder")
        shutil.rmtree(target, ignore_errors=True)
        self.metrics.to_csv(shutil.copytree(self.folder, target) / "metrics.csv")
        self.history.to_csv(target / "history.csv")
        return target

    def export(self, folder: str | Path, forms: Sequence[str] = ("latex", "csv", "svg")) -> list[Path]:
        """Write tables, curves and figures for a paper into a folder, with a paragraph on methods; returns the files.

        A file of the same name is replaced. Raises ConfigurationError for a form that there is not, OSError.

        Args:
            forms: of "latex", "csv" and "svg", as after `fedcore compare --export`.
        """
        from fedcore.comparison.report import export, parse_export

        chosen = parse_export(forms if isinstance(forms, str) else ",".join(forms))
        return export(self.report, chosen, Path(folder).expanduser().absolute())

    def __repr__(self) -> str:
        what = "; see .history, .metrics, .model(mode), .plot(), .save(folder), .export(folder)"
        return f"<fedcore.ComparisonResult: {self._title()}{what}>"

    def _repr_html_(self) -> str:
        failed = "; ".join(f"{which} failed: {reason}" for which, reason in self.failed.items())
        return html_table(self._title(), self.metrics, note=failed)

    def _title(self) -> str:
        failed = f", {len(self.failed)} of {len(self.report.runs)} runs failed" if self.failed else ""
        return f"{self.report.app} over {self.report.divided}: {', '.join(self.report.labels)}{failed}"


def _job(
    app: AppLike,
    modes: str,
    clients: int,
    rounds: int | None,
    seeds: int | Sequence[int] | None,
    partition: str,
    network: str,
    metric: str,
    run_config: Mapping[str, Scalar] | None,
    settings: Mapping[str, Scalar | Sequence[Scalar]] | None,
    folder: Path,
    data_dir: str | Path | None,
) -> CompareJob:
    from fedcore.comparison.judging import MetricChoice
    from fedcore.comparison.modes import every_mode, parse_modes
    from fedcore.comparison.plan import ALL_MODES, SEED, CompareJob, parse_seeds
    from fedcore.flower.memory_app import folder_of
    from fedcore.simulation.devices.network import Network

    loaded = folder_of(app, "a comparison")
    chosen = chosen_config(loaded, run_config, rounds=rounds)
    text = "" if seeds is None else str(seeds) if isinstance(seeds, int) else "".join(f"{seed}," for seed in seeds)
    return CompareJob(
        app=loaded,
        modes=parse_modes(modes if modes != ALL_MODES else ",".join(every_mode())),
        sites=clients,
        out=folder,
        seeds=parse_seeds(text, chosen.get(SEED)),
        partition=partition,
        network=Network.parse(network),
        run_config={key: value for key, value in chosen.items() if value != loaded.run_config[key]},
        sweep={key: _values(value) for key, value in (settings or {}).items()},
        data_dir=Path(data_dir).expanduser().absolute() if data_dir is not None else None,
        metric=MetricChoice.parse(metric) if metric else None,
        more_seeds=seeds is None,
    )


def _designed(
    job: CompareJob, budget: str, tune: Mapping[str, Sequence[Scalar]] | None, validation: float
) -> CompareJob:
    """The job with a budget and with tuning."""
    from fedcore.comparison.design.budget import Budget
    from fedcore.comparison.design.tuning import Tuning

    goal = Budget.parse(budget)
    values = {key: tuple(choice) for key, choice in (tune or {}).items()}
    tuning = Tuning(values=values, share=validation) if values else None
    return replace(job, budget=goal, tuning=tuning, metric=job.metric or goal.metric)


def _values(choice: Scalar | Sequence[Scalar]) -> tuple[Scalar, ...]:
    return (choice,) if isinstance(choice, bool | int | float | str) else tuple(choice)


def _which(run: RunResult) -> dict[str, Any]:
    return {"mode": run.mode, "seed": run.seed}


def _facts(point: Any) -> dict[str, Any]:
    facts = {name: getattr(point, name) for name in _FACTS}
    return {name: value for name, value in facts.items() if value is not None}


def _table(rows: list[dict[str, Any]], index: tuple[str, ...]) -> pandas.DataFrame:
    import pandas

    columns = list(dict.fromkeys([*index, *(name for row in rows for name in row if name not in _FACTS)]))
    present = [name for name in _FACTS if any(name in row for row in rows)]
    return pandas.DataFrame(rows, columns=[*columns, *present]).set_index(list(index))


@contextlib.contextmanager
def _unguarded_scripts() -> Iterator[None]:
    """Let no worker import the script that called: without `if __name__ == "__main__"` it would begin all over again.

    What workers run are functions of fedcore and of the app, never of that script.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
