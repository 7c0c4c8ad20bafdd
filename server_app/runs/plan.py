"""What a run is to be: the app's own settings with the operator's laid over, and whether that can work here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedcore.config import JobSettings, override
from fedcore.errors import ConfigurationError
from fedcore.exchange import EncodingPlan
from fedcore.flower.app import FlowerApp
from fedcore.wire import RunIn, Scalar
from server_app.storage.tables import RunRow


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A run before it starts. folder: holds its app, and takes its files. app: the name of the app."""

    run: str
    app: str
    app_sha256: str
    folder: Path
    run_config: Mapping[str, Scalar]
    settings: JobSettings

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
        )

    @classmethod
    def stored(cls, row: RunRow, folder: Path) -> RunPlan:
        """The plan of a run that waited in the database."""
        return cls(
            run=row.run,
            app=row.app,
            app_sha256=row.app_sha256,
            folder=folder,
            run_config=row.run_config,
            settings=JobSettings.from_mapping(row.settings),
        )

    def least_clients(self, min_cohort: int) -> int:
        """How many clients must be there before an exchange starts; `min_cohort` is what their policies ask for."""
        return self.settings.min_clients or (min_cohort if self.settings.aggregation == "secure" else 2)

    def check(self, members: int, min_cohort: int) -> None:
        """Refuse a run that cannot work among `members` clients with their policies; raises ConfigurationError."""
        settings = self.settings
        clients = self.least_clients(min_cohort)
        if max(clients, settings.quorum) > members:
            raise ConfigurationError(
                f"the run needs {max(clients, settings.quorum)} clients (min-clients, quorum), the federation has "
                f"{members}"
            )
        if settings.aggregation == "plain":
            return
        for name, value in (("min-clients", settings.min_clients), ("quorum", settings.quorum)):
            if 0 < value < min_cohort:
                raise ConfigurationError(
                    f"{name} is {value}, but it must be at least {min_cohort} with secure aggregation: every client "
                    "would refuse a sum of fewer (min-cohort in its policy.toml). Leave it at 0 to follow the policies"
                )
        if 0 < 2 * settings.quorum <= clients:
            raise ConfigurationError(
                f"quorum must be more than half of min-clients ({clients}): a server that lies could otherwise unmask "
                "single clients. Leave it at 0 for the safe default"
            )
        # Worst cases are computed now, not when the first clients have trained.
        EncodingPlan(settings, min_cohort).encoding(None, members)
