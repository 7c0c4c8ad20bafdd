"""What a run is to be: the app's own settings with the operator's laid over, and whether that can work here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedcore.config import JobSettings, override
from fedcore.errors import ConfigurationError
from fedcore.exchange import EncodingPlan, corrupt_for
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

    def fewest(self, members: int, min_cohort: int) -> int:
        """The smallest cohort that a sum may be made of; `min_cohort` honest clients are what the policies ask for."""
        if self.settings.aggregation == "plain":
            return 1
        return min_cohort + corrupt_for(self.settings, members)

    def least_clients(self, members: int, min_cohort: int) -> int:
        """How many clients must be there before an exchange starts."""
        return self.settings.min_clients or max(2, self.fewest(members, min_cohort))

    def check(self, members: int, min_cohort: int) -> None:
        """Refuse a run that cannot work among `members` clients with their policies; raises ConfigurationError."""
        settings = self.settings
        clients = self.least_clients(members, min_cohort)
        if max(clients, settings.quorum) > members:
            raise ConfigurationError(
                f"the run needs {max(clients, settings.quorum)} clients (min-clients, quorum), the federation has "
                f"{members}"
            )
        if settings.aggregation == "plain":
            return
        corrupt, fewest = corrupt_for(settings, members), self.fewest(members, min_cohort)
        for name, value in (("min-clients", settings.min_clients), ("quorum", settings.quorum)):
            if 0 < value < fewest:
                raise ConfigurationError(
                    f"{name} is {value}, but it must be at least {fewest} with secure aggregation: every client would "
                    f"refuse a sum with fewer than {min_cohort} clients (min-cohort in its policy.toml) beside the "
                    f"{corrupt} of the federation that may collude (max-corrupt). Leave it at 0 to follow the policies"
                )
        if 0 < 2 * settings.quorum <= clients + corrupt:
            raise ConfigurationError(
                f"quorum must be more than half of min-clients ({clients}) and of the {corrupt} clients that may "
                "collude: a server that lies could otherwise unmask single clients. Leave it at 0 for the safe default"
            )
        # Worst cases are computed now, not when the first clients have trained.
        EncodingPlan(settings, min_cohort).encoding("evaluate", None, members)
