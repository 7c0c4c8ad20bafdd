"""What a mode of comparison is: the one interface behind every row of `fedcore.comparison.modes.MODES`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from fedcore.errors import ConfigurationError
from fedcore.system.assignments import type_name
from fedcore.wire.base import Scalar

if TYPE_CHECKING:
    from fedcore.comparison.results import RunResult
    from fedcore.comparison.run import PlannedRun
    from fedcore.comparison.workers.models import Models
    from fedcore.comparison.workers.processes import Workers
    from fedcore.comparison.workers.schedule import Schedule
    from fedcore.flower.apps.progress_protocol import EvaluationProgress
    from fedcore.wire.events import EventSink


Readers: TypeAlias = Literal["", "nobody", "server", "sites", "pooled"]
"""pooled: nothing is sent, since the data themselves are in one place. "": of a mode that is not known here."""

Twin: TypeAlias = Literal["secrecy", "asynchrony", "privacy"]
"""What two modes differ in that are otherwise the same."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a mode.

    default: says its type, too.
    least: the smallest number.
    choices: all words; () for any.
    """

    default: Scalar
    least: float = 0
    choices: tuple[str, ...] = ()

    def read(self, key: str, value: Any) -> Scalar:
        """A value in the type of the default; raises ConfigurationError for one that does not fit."""
        if isinstance(self.default, float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not type(self.default):
            raise ConfigurationError(f"{key} must be {type_name(type(self.default))}, not {value!r}")
        if isinstance(value, int | float) and (value < 0 or math.isnan(value)):
            raise ConfigurationError(f"{key} cannot be {value}")
        if isinstance(value, int | float) and value < self.least:
            raise ConfigurationError(f"{key} must be at least {self.least:g}")
        if self.choices and value not in self.choices:
            raise ConfigurationError(f"{key} must be one of {', '.join(self.choices)}, not {value!r}")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class InReport:
    """What the report has to know of a mode, beyond what its runs found.

    pooled: all data are in one place, so that the federated modes are measured against it.
    alone: each site has a model of its own.
    protection: what a federation does for its updates; "" if there is none.
    readers: who can read what a single site sends, its update or its gradient.
    twins: modes that differ from this one in one thing alone, and in which.
    """

    pooled: bool = False
    alone: bool = False
    protection: Literal["", "secure", "plain", "private"] = ""
    readers: Readers = ""
    twins: Mapping[str, Twin] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What the processes of a mode leave behind.

    result: all but what an evaluation finds, whether the run finished or not.
    models: round -> the models that each site is to be evaluated with, 0 for the first; those of the last round are the
        run's own. {}: nothing to evaluate.
    tested: of rounds whose models are nowhere, what each site's client found that evaluated them in the same way.
    """

    result: RunResult
    models: Mapping[int, Models] = field(default_factory=dict)
    tested: Mapping[int, tuple[EvaluationProgress, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Mode(ABC):
    """One way to train the same app on the same data.

    name: as on the command line.
    title: in a few words.
    """

    any_app: ClassVar[bool] = False
    """Whether it takes any Flower app; the others train the app's model themselves."""
    tells_events: ClassVar[bool] = False
    """Whether its processes tell all events of a run, from `RunStarted` on."""

    name: str
    title: str

    @property
    def options(self) -> Mapping[str, Option]:
        """What may stand in its brackets."""
        return {}

    @property
    def private(self) -> bool:
        """Whether it needs settings of differential privacy; such a mode is no part of `--modes all`."""
        return False

    @property
    def follows_rates(self) -> bool:
        """Whether its learning rate can change from step to step and round to round, as the run config says."""
        return True

    @property
    def grows_trees(self) -> bool:
        """Whether it can have an app of boosted trees, which takes no steps."""
        return False

    def lacks(self, *, trees: bool) -> str:
        """Why the mode cannot have an app, or cannot run here; "" if it can.

        Args:
            trees: whether the app grows boosted trees.
        """
        del trees
        return ""

    def divides_batches(self, options: Mapping[str, Scalar]) -> bool:
        """Whether processes compute one gradient together, each of a part of the batch; a batch loss forbids that."""
        del options
        return False

    @property
    def in_report(self) -> InReport:
        """What sets it apart in the report."""
        return InReport()

    def setting_names(self) -> frozenset[str]:
        """Keys of [tool.fedcore] that may be set for this mode."""
        return frozenset()

    def settings(self, settings: Mapping[str, Any], *, sites: int) -> dict[str, Any]:
        """[tool.fedcore] as this mode has it; raises ConfigurationError if it cannot work."""
        return dict(settings)

    @property
    def warm_group(self) -> str:
        """Modes with the same one, unless it is "", can be served by the same processes, one run after another."""
        return ""

    def warm_processes(self, folder: Path) -> AbstractContextManager[Any]:
        """The processes of the warm group, to be started when first needed.

        Args:
            folder: for their files.
        """
        raise NotImplementedError(f"{self.name} has processes for each run")

    def global_batch(self, run: PlannedRun) -> int:
        """Examples of one step of all workers together, 0 for all that there are; by default the app's batch size."""
        return int(run.options.get("global-batch", 0)) or int(run.config["batch-size"])

    def round_steps(self, run: PlannedRun, schedule: Schedule) -> float | None:
        """Optimizer steps of one worker in a round, mean over the workers; None if it is unknown before the run."""
        del run, schedule
        return None

    @abstractmethod
    def train(self, run: PlannedRun, workers: Workers, emit: EventSink, warm: Any) -> Trained:
        """Start the processes of one run, and follow them to their end.

        Raises FedcoreError if nothing of the run is worth keeping; a run that got further and failed has a result with
        a reason.

        Args:
            workers: none of them lives yet.
            warm: what `warm_processes` made.
        """
