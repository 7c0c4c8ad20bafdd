"""`fedcore.Federation`: a federation of real processes, on this machine or elsewhere."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from fedcore.api.arguments import Progress, chosen_config, chosen_settings, progress_sink, settings_mapping
from fedcore.api.remote import RemoteOperator, remote_operator
from fedcore.api.result import OutputFolder, Run
from fedcore.errors import ConfigurationError, FedcoreError, RunFailed, UsageError
from fedcore.flower.app import AppBundle, FlowerApp
from fedcore.monitoring.output_paths import OutputPaths
from fedcore.monitoring.run_record import RunRecord
from fedcore.state import ModelState, open_initial, read_facts
from fedcore.system.files import private_folder
from fedcore.wire.base import Scalar
from fedcore.wire.events import Recorded, RunOut, Warned
from fedcore.wire.operator import RunStatus

if TYPE_CHECKING:
    import pandas

    from fedcore.flower.memory_app import AppLike
    from fedcore.system.workers.child_processes import ChildProcesses

_THREADS: Final = "OMP_NUM_THREADS"


class Federation:
    """A federation, as its operator uses it.

        with fedcore.Federation.local("my_app", clients=4) as federation:
            run = federation.run(rounds=3)

        federation = fedcore.Federation.connect("federation/operator")
        federation.clients()

    `local` starts a server and clients as processes of this machine, and ends them with the block. `connect` is the
    operator's kit of one that runs already, wherever it is; nothing is started or ended by it.
    """

    def __init__(
        self, operator: RemoteOperator | None, kit: Path | None = None, *, local: _Local | None = None
    ) -> None:
        self._operator, self._kit, self._local = operator, kit, local

    @classmethod
    def connect(cls, kit: str | Path, *, server: str = "", connect_seconds: float = 30.0) -> Self:
        """The federation that an operator's kit is for; raises KitError for a folder that is none.

        Args:
            server: its address, in place of the one in the kit.
            connect_seconds: how long it may be away.
        """
        folder = Path(kit).expanduser().absolute()
        return cls(remote_operator(folder, server, connect_seconds), folder)

    @classmethod
    def local(cls, app: AppLike, *, clients: int = 4, plain: bool = False, data_dir: str | Path | None = None) -> Self:
        """A federation of processes of this machine, which enter with the block and end with it.

        Raises ConfigurationError before anything starts; entering raises EnvironmentFailure if a process ends or
        does not come up.

        Args:
            app: the folder of the app that the clients install; an object of this process cannot be handed to others.
            plain: the owners let the server read updates, so that runs may have `aggregation="plain"`.
            data_dir: the folder with the data sets.
        """
        from fedcore.flower.memory_app import folder_of

        if clients < 2:
            raise ConfigurationError("a federation needs at least 2 clients", check="too-few-clients")
        data = None if data_dir is None else Path(data_dir).expanduser().absolute()
        return cls(None, local=_Local(folder_of(app, "a federation"), clients, plain=plain, data_dir=data))

    def __enter__(self) -> Self:
        if self._local is not None:
            self._kit = self._local.start()
            self._operator = remote_operator(self._kit)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._local is not None:
            self._operator = self._kit = None
            self._local.stop()

    @property
    def kit(self) -> Path:
        """The operator's kit, for `fedcore run --operator`; raises UsageError before it is there."""
        self._remote()
        assert self._kit is not None  # noqa: S101 - as long as there is an operator
        return self._kit

    def run(
        self,
        app: AppLike | None = None,
        *,
        rounds: int | None = None,
        seed: int | None = None,
        aggregation: Literal["secure", "plain"] | None = None,
        run_config: Mapping[str, Scalar] | None = None,
        settings: Mapping[str, Any] | None = None,
        initial_model: str | Path | None = None,
        statistics_from: str = "",
        progress: Progress = True,
    ) -> Run:
        """Submit an app, follow the run to its end, and return what came of it.

        Args:
            app: a folder; None for the app of a local federation. The others are as in `simulate`; what they change
                needs the clients' owners to allow it. Ctrl-C cancels the run. Raises RunFailed for a run that ended
                without success.
            statistics_from: an earlier run by its id, the beginning of it, or `last`: the app takes its statistics of
                columns, and asks no client; "" to ask.
        """
        from fedcore.flower.memory_app import folder_of

        operator = self._remote()
        chosen = self._app(None if app is None else folder_of(app, "a federation"))
        # Both are checked here, where a person reads it; the server gets what was changed alone.
        config = chosen_config(chosen, run_config, rounds=rounds, seed=seed)
        chosen_settings(chosen, settings, aggregation)
        changed = {key: value for key, value in config.items() if value != chosen.run_config[key]}
        initial = None if initial_model is None else Path(initial_model).expanduser().absolute()
        if initial is not None:
            open_initial(initial)
        changed_settings = settings_mapping(settings, aggregation)
        run = operator.submit(chosen.folder, changed, changed_settings, initial, statistics_from)
        try:
            final, record = self._follow(operator, run, progress)
        except KeyboardInterrupt:
            with contextlib.suppress(FedcoreError):
                operator.cancel(run)
            raise
        if final.status is not RunStatus.FINISHED:
            raise RunFailed(f"run {run} {final.status}: {final.reason or 'no reason given'}")
        return self._result(operator, final, record)

    def result(self, run: str = "last") -> Run:
        """What came of a run so far, by its id, the beginning of one, or "last"; a checkpoint's model where it goes on.

        Raises ConfigurationError if there is no such run.
        """
        operator = self._remote()
        details, record = operator.show(run), RunRecord()
        for event in details.events:
            record.add(event.event, event.seconds)
        record.status = record.status or details.status.value
        return self._result(operator, details, record)

    def model(self, run: str = "last") -> ModelState:
        """The model of a run, or its last checkpoint; raises ConfigurationError if it has none."""
        operator = self._remote()
        details = operator.show(run)
        if details.model is None:
            raise ConfigurationError(f"run {details.run} ({details.status}) has no model")
        with private_folder() as folder:
            home = OutputPaths.next_to(folder / "model.safetensors")
            operator.fetch(details, home)
            return ModelState.open(home.model)  # stays mapped when the file has gone

    def runs(self, limit: int = 20) -> pandas.DataFrame:
        """The newest runs, indexed by id: status, app, rounds, when each was submitted, epsilon, and why it ended."""
        names = ("run", "status", "app", "aggregation", "rounds", "submitted_at", "epsilon", "reason")
        rows = [info.model_dump(mode="json", include=set(names)) for info in self._remote().runs(limit)]
        return _frame(rows, names)

    def clients(self) -> pandas.DataFrame:
        """The members, indexed by name: whether each is connected, may train now, and has the app with which hash."""
        names = ("name", "online", "eligible", "app_sha256", "last_seen_seconds")
        rows = [one.model_dump(mode="json", include=set(names)) for one in self._remote().members().clients]
        return _frame(rows, names)

    def stats(
        self,
        app: AppLike | None = None,
        *,
        table_one: bool = False,
        by: str = "",
        crosstab: Sequence[str] = (),
        correlations: Sequence[str] | Literal[True] = (),
        glm: str = "",
        family: str = "",
        site_effects: Literal["", "fixed", "random"] = "",
        survival: str = "",
        bounds: Mapping[str, tuple[float, float]] | None = None,
        bins: int | None = None,
        dp_epsilon: float = 0.0,
        dp_delta: float | None = None,
    ) -> pandas.DataFrame:
        """The table that `fedcore stats` saves as CSV, indexed by its first column: by default a row for each column.

        Every answer is made of sums over clients. Raises ConfigurationError for arguments that do not go together.

        Args:
            app: a folder; None for the app of a local federation.
            table_one: ask for a table one, as text.
            by: the column whose values are the groups of a table one, or of survival curves.
            crosstab: two categories, for a row for each pair of their values.
            correlations: numbers, for a row for each pair of them; True for all numbers of the app's schema.
            glm: the formula of a regression.
            family: of the regression; by default what the target is in the app's schema.
            site_effects: give each site an intercept in the regression, which it tells nobody ("fixed"), or one that is
                drawn from a normal distribution ("random").
            survival: the columns with times and events, as in "days died", for a row for each time of a curve.
            bounds: lowest and highest value of each column; by default those of the app.
            bins: cells of a histogram.
            dp_epsilon: differential privacy of each record in this answer; 0 for none.
            dp_delta: the delta of that; None for 1e-5.
        """
        from fedcore.data.reports.options import StatsOptions
        from fedcore.data.reports.report import report_frame
        from fedcore.flower.memory_app import folder_of

        chosen = self._app(None if app is None else folder_of(app, "a federation"))
        options = StatsOptions(
            table_one=table_one,
            by=by,
            crosstab=tuple(crosstab),
            correlations=("all",) if correlations is True else tuple(correlations),
            glm=glm,
            family=family,
            site_effects=site_effects,
            survival=survival,
            bounds=bounds or (),
            bins=bins,
            dp_epsilon=dp_epsilon,
            dp_delta=dp_delta,
        )
        return report_frame(self._remote().statistics(chosen.folder, options))

    def __repr__(self) -> str:
        if self._local is None:
            return f"<fedcore.Federation: {self._kit}>"
        state = "running" if self._operator is not None else "not started; use it in a with statement"
        return f"<fedcore.Federation: {self._local.clients} clients of this machine, {self._local.app.name}, {state}>"

    def _app(self, app: FlowerApp | None) -> FlowerApp:
        """What is to run: of a local federation the app that its clients installed, as they installed it."""
        if self._local is not None:
            return self._local.installed(app)
        if app is None:
            raise ConfigurationError("name the folder of the app to run")
        return app

    def _remote(self) -> RemoteOperator:
        if self._operator is None:
            raise UsageError("this federation runs within a with statement: with fedcore.Federation.local(...) as fed:")
        if self._local is not None:
            self._local.check()
        return self._operator

    def _follow(self, operator: RemoteOperator, run: str, progress: Progress) -> tuple[RunOut, RunRecord]:
        record = RunRecord()
        with progress_sink(progress, "federated") as show:

            def take(recorded: Recorded) -> None:
                record.add(recorded.event, recorded.seconds)
                show(recorded.event)

            return operator.follow(run, take, lambda why: show(Warned(line=why))), record

    def _result(self, operator: RemoteOperator, details: RunOut, record: RunRecord) -> Run:
        files = OutputFolder()
        with files, private_folder() as folder:
            home = replace(OutputPaths.next_to(folder / "model.safetensors"), files=files.path)
            results = operator.fetch(details, home)
            model = ModelState.open(home.model) if details.model is not None else None
            facts = read_facts(home.model) if details.model is not None else None
        return Run(
            app=details.app,
            clients=len(operator.members().clients),
            record=record,
            model=model,
            results=results,
            run_config=details.run_config,
            settings=details.settings,
            id=details.run,
            facts=facts,
            files=files if files.holds_files() else None,
        )


class _Local:
    """Server and clients of this machine, in a folder that goes with them."""

    def __init__(self, app: FlowerApp, clients: int, *, plain: bool, data_dir: Path | None) -> None:
        self.app, self.clients = app, clients
        self._plain, self._data_dir = plain, data_dir
        self._folder: OutputFolder | None = None
        self._group: ChildProcesses | None = None
        self._sha256 = AppBundle.from_folder(app.folder).sha256

    def installed(self, chosen: FlowerApp | None) -> FlowerApp:
        """The app; raises ConfigurationError for another one, whose run the clients would let wait in vain."""
        app = self.app if chosen is None else chosen
        if AppBundle.from_folder(app.folder).sha256 != self._sha256:
            raise ConfigurationError(
                f"the clients of this federation have installed {self.app.name} as it was when they started, and "
                f"{app.folder} is another app, or was changed since; start a federation of it: "
                "fedcore.Federation.local(app)",
                check="other-app",
            )
        return app

    def start(self) -> Path:
        """Start all processes and wait until every client is connected; the operator's kit."""
        from fedcore.comparison.local_federation import LocalFederation
        from fedcore.system.workers.child_processes import ChildProcesses

        if self._group is not None:
            raise UsageError("this federation runs already; make another one")
        self._folder = OutputFolder()
        with self._folder:
            local = LocalFederation.create(
                self._folder.path / "kits", clients=self.clients, allow_plain=self._plain, name="local"
            )
            self._group = ChildProcesses(self._folder.path / "logs", self._environment()).__enter__()
            try:
                local.start_server(self._group)
                local.start_clients(self._group, self.app.folder)
                local.wait_connected(self._group)
            except BaseException:
                self.stop()
                raise
        return local.operator

    def check(self) -> None:
        """Raise EnvironmentFailure if a process has ended."""
        if self._group is not None:
            self._group.check()

    def stop(self) -> None:
        """End all processes."""
        if self._group is not None:
            self._group.stop()
        self._group = self._folder = None

    def _environment(self) -> dict[str, str]:
        """Variables that the processes get in addition to this one's own: their share of the cores, and the data."""
        share = max(1, (os.cpu_count() or 1) // self.clients)
        threads = {} if _THREADS in os.environ else {_THREADS: str(share)}
        return threads | ({} if self._data_dir is None else {"FEDCORE_DATA": str(self._data_dir)})


def _frame(rows: list[dict[str, Any]], names: tuple[str, ...]) -> pandas.DataFrame:
    import pandas

    return pandas.DataFrame(rows, columns=list(names)).set_index(names[0])
