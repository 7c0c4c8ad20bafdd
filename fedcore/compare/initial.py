"""The model that a run begins with, as the app's ServerApp makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedcore.errors import AppError, BudgetSpent
from fedcore.flower.app import FlowerApp
from fedcore.flower.serverside import run_server_app
from fedcore.round import ExchangeReply, ExchangeRequest
from fedcore.state import ModelState
from fedcore.wire import Scalar


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
