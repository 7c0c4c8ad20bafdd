"""A run whose ServerApp is fedcore's own question for statistics, and nothing of the user's."""

from __future__ import annotations

from flwr.supercore.task_identity import TaskIdentity

from fedcore.data.statistics import Statistics, StatisticsQuery
from fedcore.flower.apps.statistics import answered
from fedcore.flower.grid.grid import Aggregation, ExchangeBackend
from fedcore.flower.grid.plain_grid import PlainGrid
from fedcore.flower.grid.secure_grid import SecureGrid
from fedcore.flower.records import SERVER_NODE, run_id_of


def run_statistics(
    question: StatisticsQuery, *, backend: ExchangeBackend, run: str, aggregation: Aggregation
) -> Statistics:
    """Ask the clients of a run whose app has ClientApps that answer; raises what `federated_statistics` does."""
    run_id = run_id_of(run)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, SERVER_NODE, 0
    kind = SecureGrid if aggregation == "secure" else PlainGrid
    return answered(kind(backend, run_id=run_id), question)
