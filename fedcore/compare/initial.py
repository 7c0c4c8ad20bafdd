"""The model that a run begins with, as the app's ServerApp makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedcore.compare.run import ModeRun
from fedcore.compare.workers import ReportSink, Workers
from fedcore.errors import AppError, BudgetSpent
from fedcore.exchange import ExchangeReply, ExchangeRequest
from fedcore.flower.app import FlowerApp
from fedcore.flower.serverside import run_server_app
from fedcore.state import ModelState
from fedcore.state.files import sha256_file
from fedcore.wire import Scalar

INITIAL_FILE = "initial.safetensors"
START_SECONDS = 600.0
"""How long the app may take to import and to make a model, or to read its data."""


@dataclass(frozen=True, slots=True)
class _Ending:
    """An `ExchangeBackend` that ends the run when the first model is sent."""

    sites: int

    def nodes(self) -> list[int]:
        return list(range(1, self.sites + 1))

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        raise BudgetSpent("the first model is known")


def initial_state(app: FlowerApp, *, config: Mapping[str, Scalar], sites: int) -> ModelState:
    """Run the ServerApp in this process up to the first model that it sends; raises AppError where it sends none."""
    outcome = run_server_app(
        app, backend=_Ending(sites), run="initial model", run_config=dict(config), aggregation="plain"
    )
    if outcome.state is None:
        raise AppError(f"the ServerApp of {app.name} sends no model with its first message")
    return outcome.state


def save_initial(run: ModeRun, workers: Workers) -> str:
    """Write the initial model into the folder of the run, from a process of its own; returns the file's SHA-256.

    Raises RunFailed with what the app raised.
    """
    workers.call("initial", _save_initial, run, silence=START_SECONDS)
    return sha256_file(run.folder / INITIAL_FILE)


def _save_initial(report: ReportSink, run: ModeRun) -> None:
    del report
    initial_state(run.app, config=run.config, sites=run.sites).save(run.folder / INITIAL_FILE)
