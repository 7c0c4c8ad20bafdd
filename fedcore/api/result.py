"""The result of a run: history as a table, model, record; it displays, plots and saves itself."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from fedcore.api.history import FACTS, final_metrics, history_of
from fedcore.api.showing import axes_or_new, html_table, metrics_line, metrics_to_plot
from fedcore.errors import ConfigurationError
from fedcore.monitoring.run_record import RunRecord
from fedcore.state import ModelFacts, ModelState, write_model
from fedcore.system.files import check_own_folder, make_private_folder, remove_tree, write_file
from fedcore.wire.base import Scalar

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

MODEL_FILE: Final = "model.safetensors"
_SAVED: Final = ("run.json", MODEL_FILE, "history.csv", "files")
"""What the folder of a saved run has."""


class OutputFolder:
    """A folder for temporary files that is removed with this object, or with the process.

    Use as a context manager while it is filled: an error removes it at once.
    """

    def __init__(self) -> None:
        self.path = make_private_folder()
        self._remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def holds_files(self) -> bool:
        """Whether there is anything in it."""
        return any(self.path.iterdir())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._remove()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Run:
    """A run that has ended.

    app: its name.
    clients: how many there were.
    id: of a run of a federation; "" for a simulation.
    model: the final global one, None if the app never had one.
    record: every event that matters, as reports are made of.
    results: what the ServerApp's strategy found, by "train", "evaluate" and "server" and then by round.
    run_config: as it was in the run.
    settings: those of the run.
    facts: what the model's file says of it, None for an app that is no folder.
    files: the folder with what the ServerApp wrote, None if it wrote nothing; `save` keeps it.
    """

    app: str
    clients: int
    record: RunRecord
    model: ModelState | None
    results: Mapping[str, Any] = field(default_factory=dict)
    run_config: Mapping[str, Scalar] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    facts: ModelFacts | None = None
    files: OutputFolder | None = None

    @property
    def history(self) -> pandas.DataFrame:
        """One row for each round: metrics by name, then clients, dropped, seconds, bytes and epsilon."""
        return history_of(self.record, self.results)

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the last evaluation; of the last training where nothing was evaluated."""
        return final_metrics(self.record, self.results)

    @property
    def epsilon(self) -> float | None:
        """What each client's privacy was spent of, at the delta of the terms; None without differential privacy."""
        return self.record.epsilon_spent()

    def plot(self, *metrics: str, ax: Axes | None = None) -> Axes:
        """Draw metrics over the rounds; without names the accuracy, or else the loss, that the clients tested.

        Raises UnknownKey for a name that no column of `history` has.
        """
        from matplotlib.ticker import MaxNLocator

        frame = self.history
        axes = axes_or_new(ax)
        for name in metrics_to_plot(frame, metrics, FACTS):
            drawn = frame[name].dropna()
            axes.plot(drawn.index, drawn, marker="o" if len(drawn) < 25 else "", label=name)
        axes.set_xlabel("round")
        axes.set_title(f"{self.app}, {self.clients} clients, {self.record.aggregation}")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(frameon=False)
        return axes

    def save(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write the run into a folder: model.safetensors, history.csv, run.json, and the ServerApp's files.

        Raises ConfigurationError if there is one, OSError.

        Args:
            force: replace a folder that this made earlier; one with anything else in it stays.
        """
        target = Path(folder).expanduser().absolute()
        if target.exists() and not force:
            raise ConfigurationError(
                f"{target} exists already; name another folder, or replace it with force=True", check="exists"
            )
        check_own_folder(target, _SAVED, mark=_SAVED[0], option="folder")
        if target.exists():
            remove_tree(target)
        target.mkdir(parents=True)
        if self.model is not None and self.facts is not None:
            write_model(self.model, target / MODEL_FILE, self.facts)
        elif self.model is not None:
            self.model.save(target / MODEL_FILE)
        self.history.to_csv(target / "history.csv")
        write_file(target / "run.json", json.dumps(self.summary(), indent=2) + "\n")
        if self.files is not None:
            shutil.copytree(self.files.path, target / "files")
        return target

    def report(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write report.html, report.md, report.json and figures, as `fedcore compare` makes them, into a folder.

        `fedcore compare --from` lays several of these report.json over one another.

        Raises ConfigurationError if there is something else, OSError.

        Args:
            force: replace a report that is there.
        """
        from fedcore.comparison.report import write_report
        from fedcore.comparison.simulated import check_report_folder, comparison_of

        target = Path(folder).expanduser().absolute()
        check_report_folder(target, force=force)
        comparison = comparison_of(
            self.record,
            self.results,
            app=self.app,
            clients=self.clients,
            run_config=self.run_config,
            settings=self.settings,
            changed=tuple(self.run_config),
            seed=0,
            parameters=0 if self.model is None else sum(spec.size for spec in self.model.layout.specs),
        )
        target.mkdir(parents=True, exist_ok=True)
        write_report(comparison, target)
        return target

    def summary(self) -> dict[str, Any]:
        """The run as plain JSON, without its model: what `fedcore simulate --json` prints."""
        return {
            "app": self.app,
            "run": self.id,
            "clients": self.clients,
            **self.record.summary(),
            "run_config": dict(self.run_config),
            "settings": dict(self.settings),
            "results": dict(self.results),
        }

    def __repr__(self) -> str:
        return (
            f"<fedcore.Run: {self._title()}; see .history, .metrics, .model, .plot(), .report(folder), .save(folder)>"
        )

    def _repr_html_(self) -> str:
        return html_table(self._title(), self.history, note=self._note())

    def _title(self) -> str:
        rounds = self.record.rounds()
        figures = metrics_line(self.metrics)
        what = f"{self.app} {self.record.status}: {rounds} {'round' if rounds == 1 else 'rounds'} over "
        what += f"{self.clients} clients, {self.record.aggregation}"
        return f"{what}: {figures}" if figures else what

    def _note(self) -> str:
        notes = [self.record.reason]
        if self.record.privacy is not None:
            terms = self.record.privacy
            notes.append(f"each client has ({self.epsilon:.3g}, {terms.delta:g})-differential privacy")
        return "; ".join(filter(None, notes))
