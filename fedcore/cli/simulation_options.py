"""Options of `fedcore simulate`: what to run, and where results are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcore.errors import ConfigurationError

if TYPE_CHECKING:
    from fedcore.comparison.report import Comparison
    from fedcore.comparison.results import CurvePoint, SumCheck
    from fedcore.comparison.target import Target
    from fedcore.flower.app import FlowerApp
    from fedcore.monitoring.run_record import RunRecord
    from fedcore.run.settings import JobSettings
    from fedcore.simulation import Simulation
    from fedcore.state import ModelState
    from fedcore.wire.base import Scalar


SEED = "seed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One run of a sweep.

    seed: of the simulation, and of the app if its run config has a seed.
    """

    seed: int
    values: Mapping[str, Scalar]

    @property
    def name(self) -> str:
        """A name for its folder."""
        words = [f"{key}={value}" for key, value in self.values.items()]
        return ",".join([*words, f"{SEED}={self.seed}"]).replace("/", "_")

    def path(self, path: Path | None, *, folder: bool) -> Path | None:
        """The path of this run in place of `path`: in a folder of its own."""
        if path is None:
            return None
        return path / self.name if folder else path.parent / self.name / path.name


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions:
    """An app, the number of its clients, and the configuration with the values of the command line.

    target: a value of a metric; the summary says when a model first reached it, and the run does not change.
    """

    app: FlowerApp
    clients: int
    run_config: Mapping[str, Scalar]
    settings: JobSettings
    target: Target | None = None

    @classmethod
    def of(
        cls,
        folder: Path,
        clients: int | None,
        run_config: list[str] | None,
        settings: list[str] | None,
        per_round: int | None,
        target: str = "",
    ) -> SimulationOptions:
        """Read the app, and lay the options over its own values; raises ConfigurationError."""
        from fedcore.comparison.target import Target
        from fedcore.flower.app import FlowerApp
        from fedcore.run.model_selection import laid_over
        from fedcore.run.settings import JobSettings
        from fedcore.simulation.workers.executors import with_cohort
        from fedcore.system.assignments import override, parse_assignments

        app = FlowerApp.load(folder.absolute())
        clients = clients or app.simulation_clients
        changes = parse_assignments(run_config or [])
        config = override(app.run_config, changes, "the run config")
        return cls(
            app=app,
            clients=clients,
            run_config=with_cohort(config, changes, per_round, clients),
            settings=JobSettings.from_mapping(
                laid_over(app.settings.to_mapping(), parse_assignments(settings or [])), where="--set"
            ),
            target=Target.parse(target) if target else None,
        )

    def check_target(self) -> None:
        """Refuse a target whose metric no evaluation reports, if the app says what it reports."""
        from fedcore.comparison.app_evaluation import CLIENTS
        from fedcore.errors import ConfigurationError
        from fedcore.flower.apps.personalization import PREFIX
        from fedcore.flower.serverside import load_server_app
        from fedcore.flower.strategies.registry import AveragingServer

        if self.target is None:
            return
        server = load_server_app(self.app)
        reports = server.reports if isinstance(server, AveragingServer) else None
        if reports is not None and self.target.metric.removeprefix(CLIENTS) not in reports:
            raise ConfigurationError(
                f"--target: no evaluation of {self.app.name} reports {self.target.metric!r}; "
                f"there is {', '.join(sorted(name for name in reports if not name.startswith(PREFIX)))}"
            )

    def at(self, point: SweepPoint) -> SimulationOptions:
        """The options of one run of a sweep: its values, and its seed if the app has one."""
        from fedcore.run.model_selection import laid_over
        from fedcore.run.settings import JobSettings

        config, settings = dict(self.run_config), self.settings.to_mapping()
        if SEED in config:
            config[SEED] = point.seed
        config |= {key: value for key, value in point.values.items() if key in config}
        changed = {key: value for key, value in point.values.items() if key not in config}
        made = JobSettings.from_mapping(laid_over(settings, changed), where="--vary") if changed else self.settings
        return replace(self, run_config=config, settings=made)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Where models and results are written; existing files are replaced only with `force`."""

    out: Path | None
    """The last model."""
    best: Path | None
    """The best model."""
    report: Path | None
    """The folder of the report."""
    force: bool
    several: list[tuple[Mapping[str, Scalar], Comparison]] | None = None
    """Of a sweep, the runs up to now, which have one report together; None for one run, which has its own."""
    point: Mapping[str, Scalar] = field(default_factory=dict)

    def check(self, settings: JobSettings) -> None:
        """Refuse before the run what could not be written after it; raises ConfigurationError."""
        from fedcore.monitoring.output_paths import OutputPaths

        if self.report is not None:
            from fedcore.comparison.simulated import check_report_folder

            check_report_folder(self.report, force=self.force)
        if self.out is not None:
            OutputPaths.next_to(self.out).check_free(force=self.force)
        if self.best is not None:
            if not settings.best_model:
                raise ConfigurationError(
                    "--best: no setting says which model is best; give one, such as --set best-model=eval_acc:max"
                )
            OutputPaths.next_to(self.best).check_free(force=self.force, option="--best")

    def at(self, point: SweepPoint) -> Outputs:
        """The outputs of one run of a sweep, each in its own folder but for the report, which is of all."""
        return replace(
            self,
            out=point.path(self.out, folder=False),
            best=point.path(self.best, folder=False),
            point=point.values,
        )

    def write_report_of_all(self) -> None:
        """Write the report of a sweep, with the runs up to now."""
        if self.report is None or not self.several:
            return
        from fedcore.comparison.report import pool, write_report

        self.report.mkdir(parents=True, exist_ok=True)
        write_report(pool(self.several), self.report)

    def results(self, simulation: Simulation, folder: Path) -> dict[str, Any]:
        """Write the ServerApp's results and files next to the models; their paths, by kind, those of the last model."""
        from fedcore.monitoring.output_paths import OutputPaths

        models = [path for path in (self.best, self.out) if path is not None]
        written = [OutputPaths.next_to(path).write(simulation.results, folder) for path in models]
        return written[-1] if written else {}

    def write_report(
        self,
        options: SimulationOptions,
        simulation: Simulation,
        state: ModelState | None,
        record: RunRecord,
        sum_checks: Sequence[SumCheck] = (),
    ) -> Sequence[CurvePoint] | None:
        """Write the report if there is to be one, or keep the run for that of its sweep; its curve, else None."""
        if self.report is None:
            return None
        from fedcore.comparison.report import write_report
        from fedcore.comparison.simulated import comparison_of

        own = options.app.run_config
        made = comparison_of(
            record,
            simulation.results,
            app=options.app.name,
            clients=options.clients,
            run_config=options.run_config,
            settings=options.settings.to_mapping(),
            changed=[key for key, value in options.run_config.items() if value != own.get(key)],
            seed=simulation.seed,
            target=options.target,
            parameters=0 if state is None else sum(spec.size for spec in state.layout.specs),
        )
        comparison = replace(made, sum_checks=tuple(sum_checks))
        if self.several is None:
            self.report.mkdir(parents=True, exist_ok=True)
            write_report(comparison, self.report)
        else:
            self.several.append((self.point, comparison))
        return comparison.runs[0].curve

    def models(self, simulation: Simulation, state: ModelState | None, record: RunRecord) -> Iterator[tuple[str, Path]]:
        """Write the last and the best model if they are to be saved; kind and path of each."""
        from fedcore.simulation import best_facts, model_facts
        from fedcore.state import write_model

        if self.out is not None and state is not None:
            write_model(state, self.out, model_facts(simulation, record))
            yield "model", self.out
        if self.best is not None and simulation.best is not None:
            self.best.parent.mkdir(parents=True, exist_ok=True)
            write_model(simulation.best.state, self.best, best_facts(simulation, record, simulation.best))
            yield "best", self.best
