"""The operator's side of a federation for the library, which loads it through the entry point `fedcore.operator`.

The library imports no app; `fedcore.api.remote.RemoteOperator` is the protocol that this module implements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from client_app.operator.client import OperatorClient, operator_client
from client_app.operator.download import fetch_results
from client_app.operator.resolve_run import resolve_run
from client_app.operator.run_submission import make_submission, send_submission
from client_app.operator.stats import ask_federation, request_of
from fedcore.data.reports.options import StatsOptions
from fedcore.data.reports.report import ColumnsReport
from fedcore.flower.app import FlowerApp
from fedcore.monitoring.output_paths import OutputPaths
from fedcore.wire.events import Recorded, RunOut
from fedcore.wire.operator import MOST_LISTED, RunInfo, ServerOut


@dataclass(frozen=True, slots=True)
class Remote:
    """A federation, by its operator's kit; `server` replaces the kit's addresses unless it is ""."""

    kit: Path
    server: str = ""
    connect_seconds: float = 30.0

    def submit(
        self,
        app: Path,
        run_config: Mapping[str, Any],
        settings: Mapping[str, Any],
        initial: Path | None,
        statistics_from: str = "",
    ) -> str:
        """Check a run here, submit it, and return its id."""
        submission = make_submission(app, run_config, settings, initial)
        with self._client() as client:
            return send_submission(client, submission, initial, statistics_from)

    def follow(self, run: str, emit: Callable[[Recorded], None], away: Callable[[str], None]) -> RunOut:
        """Emit the events of a run until it has ended; returns its final state. `away` gets the reason of an outage."""
        with self._client() as client:
            for state in client.follow(run, on_away=away):
                for event in state.events:
                    emit(event)
        return state

    def cancel(self, run: str) -> None:
        """Cancel a run."""
        with self._client() as client:
            client.cancel(run)

    def runs(self, limit: int) -> list[RunInfo]:
        """The newest runs."""
        with self._client() as client:
            return client.list_runs(limit=min(limit, MOST_LISTED)).runs

    def members(self) -> ServerOut:
        """The members, and which are connected."""
        with self._client() as client:
            return client.members()

    def show(self, word: str) -> RunOut:
        """A run with its events, by its id, the beginning of it, or `last`."""
        with self._client() as client:
            return client.show(resolve_run(client, word))

    def fetch(self, run: RunOut, home: OutputPaths) -> dict[str, Any]:
        """Download a run's model, results and files; returns the results."""
        with self._client() as client:
            if run.model is not None:
                client.fetch_model(run.run, run.model, home.model)
            results: dict[str, Any] = {}
            if run.status.final:
                summary = fetch_results(client.files(run.run), home, partial(client.fetch_file, run.run))
                results = dict(summary["results"] or {})
            return results

    def statistics(self, app: Path, options: StatsOptions) -> ColumnsReport:
        """Ask about columns."""
        request = request_of(FlowerApp.load(app), options)
        answer = ask_federation(
            request, self.kit, server=self.server, connect_seconds=self.connect_seconds, run_config={}, settings={}
        )
        return request.report(answer)

    def _client(self) -> OperatorClient:
        return operator_client(self.kit, self.server, self.connect_seconds)
