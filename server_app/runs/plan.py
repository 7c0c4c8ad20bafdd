"""What a run is to be: the app's own settings with the operator's laid over, and whether that can work here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcore.data.questions import Question, question_from_plain, question_to_plain
from fedcore.errors import ConfigurationError
from fedcore.flower.app import FlowerApp
from fedcore.run.buffer import buffer_size
from fedcore.run.model_selection import laid_over
from fedcore.run.requirements import check_needs
from fedcore.run.settings import JobSettings
from fedcore.system.assignments import override
from fedcore.wire.base import Scalar
from fedcore.wire.operator import RunIn
from server_app.storage.tables import RunRow


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A run before it starts.

    app
        Its name.
    question
        For statistics, asked in place of the app's ServerApp.
    initial_sha256
        Of the model that the app's strategy starts from in place of its own; "" for its own.
    known_statistics
        Of columns, taken from an earlier run; as `RunRow.known_statistics`.
    """

    run: str
    app: str
    app_sha256: str
    run_config: Mapping[str, Scalar]
    settings: JobSettings
    question: Question | None = None
    initial_sha256: str = ""
    known_statistics: Mapping[str, Any] | None = None

    @classmethod
    def submitted(
        cls, run: str, folder: Path, body: RunIn, known_statistics: Mapping[str, Any] | None = None
    ) -> RunPlan:
        """The plan of a run that an operator submits, whose app is in `folder`; raises ConfigurationError."""
        app = FlowerApp.load(folder)
        values = laid_over(app.settings.to_mapping(), body.settings)
        settings = JobSettings.from_mapping(values, where="the run's settings")
        config = override(app.run_config, body.run_config, "the run config of the app")
        if not app.name:
            raise ConfigurationError("the app's pyproject.toml gives it no name")
        return cls(
            run=run,
            app=app.name,
            app_sha256=body.app_sha256,
            run_config=config,
            settings=settings,
            question=_question(body.statistics),
            initial_sha256=body.initial_model,
            known_statistics=known_statistics,
        )

    @classmethod
    def stored(cls, row: RunRow) -> RunPlan:
        """The plan of a run that waited in the database."""
        return cls(
            run=row.run,
            app=row.app,
            app_sha256=row.app_sha256,
            run_config=row.run_config,
            settings=JobSettings.from_mapping(row.settings),
            question=_question(row.question),
            initial_sha256=row.initial_sha256,
            known_statistics=row.known_statistics,
        )

    def columns(self) -> dict[str, Any]:
        """What the database keeps of it, as columns of a `RunRow`."""
        return {
            "run": self.run,
            "aggregation": self.settings.aggregation,
            "app": self.app,
            "app_sha256": self.app_sha256,
            "run_config": dict(self.run_config),
            "settings": self.settings.to_mapping(),
            "question": None if self.question is None else question_to_plain(self.question),
            "initial_sha256": self.initial_sha256,
            "known_statistics": None if self.known_statistics is None else dict(self.known_statistics),
        }

    def check(self, members: int, min_cohort: int) -> None:
        """Refuse a run that cannot work among `members` clients with their policies; raises ConfigurationError."""
        if self.settings.buffered:
            buffer_size(self.settings, members, min_cohort)
        check_needs(self.settings, members, min_cohort)


def _question(data: object) -> Question | None:
    """A question from its JSON; raises ConfigurationError if it is none."""
    return None if data is None else question_from_plain(data)
