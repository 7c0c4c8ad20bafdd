"""What a run is to be: the app's own settings with the operator's laid over, and whether that can work here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from fedcore.config import JobSettings, override
from fedcore.errors import ConfigurationError
from fedcore.flower.app import FlowerApp
from fedcore.needs import check_needs, least_clients
from fedcore.plain_json import from_plain, to_plain
from fedcore.statistics import Question
from fedcore.wire import RunIn, Scalar
from server_app.storage.tables import RunRow

QUESTION: Final[TypeAdapter[Question]] = TypeAdapter(Question)
QUESTION_FILE: Final = "statistics.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A run before it starts.

    folder: holds its app, and takes its files. app: the name of the app. question: for statistics, asked in place of
    the app's ServerApp.
    """

    run: str
    app: str
    app_sha256: str
    folder: Path
    run_config: Mapping[str, Scalar]
    settings: JobSettings
    question: Question | None = None

    @classmethod
    def submitted(cls, run: str, folder: Path, body: RunIn) -> RunPlan:
        """The plan of a run that an operator submits, whose app lies in `folder`; raises ConfigurationError."""
        app = FlowerApp.load(folder / "app")
        settings = JobSettings.from_mapping({**app.settings.to_mapping(), **body.settings}, where="the run's settings")
        config = override(app.run_config, body.run_config, "the run config of the app")
        if not app.name:
            raise ConfigurationError("the app's pyproject.toml gives it no name")
        return cls(
            run=run,
            app=app.name,
            app_sha256=body.app_sha256,
            folder=folder,
            run_config=config,
            settings=settings,
            question=_question(body.statistics),
        )

    @classmethod
    def stored(cls, row: RunRow, folder: Path) -> RunPlan:
        """The plan of a run that waited in the database."""
        kept = folder / QUESTION_FILE
        return cls(
            run=row.run,
            app=row.app,
            app_sha256=row.app_sha256,
            folder=folder,
            run_config=row.run_config,
            settings=JobSettings.from_mapping(row.settings),
            question=_question(json.loads(kept.read_text()) if kept.exists() else None),
        )

    def keep_question(self) -> None:
        """Write the question to the run's folder, where `stored` finds it."""
        if self.question is not None:
            text = json.dumps(to_plain(QUESTION, self.question))
            (self.folder / QUESTION_FILE).write_text(text, encoding="utf-8")

    def least_clients(self, members: int, min_cohort: int) -> int:
        """How many clients must be there before an exchange starts."""
        return least_clients(self.settings, members, min_cohort)

    def check(self, members: int, min_cohort: int) -> None:
        """Refuse a run that cannot work among `members` clients with their policies; raises ConfigurationError."""
        check_needs(self.settings, members, min_cohort)


def _question(data: object) -> Question | None:
    """What is asked, from its JSON; raises ConfigurationError where it is none."""
    if data is None:
        return None
    return from_plain(QUESTION, data, what="the question for statistics", error=ConfigurationError)
