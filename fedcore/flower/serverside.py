"""Runs an unmodified Flower ServerApp: its Grid turns every `send_and_receive` into one exchange."""

from __future__ import annotations

import hashlib
import importlib.util
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict
from flwr.serverapp import ServerApp
from flwr.supercore.task_identity import TaskIdentity

from fedcore.data.correlation.question import CorrelationQuery
from fedcore.data.questions import Answer, Question
from fedcore.data.regression.question import RegressionQuery
from fedcore.data.survival.question import SurvivalQuery
from fedcore.errors import BudgetSpent, EnoughFound
from fedcore.flower.app import FlowerApp
from fedcore.flower.apps.statistics import answered
from fedcore.flower.array_view import averaging_views
from fedcore.flower.grid.grid import Aggregation, ExchangeBackend, ExchangeGrid
from fedcore.flower.grid.initial_model import starting_from
from fedcore.flower.grid.plain_grid import PlainGrid
from fedcore.flower.grid.robust import Groups
from fedcore.flower.grid.secure_grid import OnRefusal, SecureGrid, refuse
from fedcore.flower.grid.training_means import MeanRecorder
from fedcore.flower.legacy import legacy_rounds
from fedcore.flower.loading import load_object, naming_dtypes
from fedcore.flower.output import quiet_flower
from fedcore.flower.records import SERVER_NODE, run_id_of
from fedcore.flower.regression import ask_correlations, ask_regression, ask_survival
from fedcore.flower.results import OnResults, results_of
from fedcore.flower.start import ServerAppStart
from fedcore.state import ModelState
from fedcore.wire.base import Scalar


@dataclass(slots=True)
class ServerAppOutcome:
    """What a ServerApp ended with: the final global model, None if it never had one.

    stopped: why it was ended before its own end; empty if it was not.
    """

    state: ModelState | None = None
    stopped: str = ""


def begin_server_process(run: str) -> None:
    """Prepare a process for a run's ServerApp, which nothing may precede that draws from the generators.

    The server's process of a run calls this, and one that derives the first model. If torch is not imported yet, its
    generator is seeded as soon as it is.
    """
    quiet_flower()
    seed = seed_generators(f"fedcore ServerApp of run {run}")
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _SeedTorch(seed))


def run_started(start: ServerAppStart, *, backend: ExchangeBackend, **options: Any) -> ServerAppOutcome:
    """Run the ServerApp that `start` describes, as `run_server_app` does, with its other options."""
    return run_server_app(
        FlowerApp.load(Path(start.app)),
        backend=backend,
        run=start.run,
        run_config=start.run_config,
        aggregation=start.aggregation,
        noised=start.noised,
        buffered=start.buffered,
        compressed=start.compressed,
        groups=Groups(start.groups, start.least_groups) if start.groups > 1 else None,
        noise_shares=start.noise_shares(options.get("most_nodes", lambda: None)),
        **options,
    )


def load_server_app(app: FlowerApp) -> ServerApp:
    """Import the app's ServerApp; raises AppError, and what the user's code raises."""
    return load_object(app.folder, app.serverapp, ServerApp)


def run_server_app(
    app: FlowerApp,
    *,
    backend: ExchangeBackend,
    run: str,
    run_config: dict[str, Scalar],
    aggregation: Aggregation,
    most_nodes: Callable[[], int | None] = lambda: None,
    on_results: OnResults | None = None,
    initial: ModelState | None = None,
    on_refusal: OnRefusal = refuse,
    noised: bool = False,
    compressed: bool = False,
    buffered: bool = False,
    groups: Groups | None = None,
    on_loaded: Callable[[], None] | None = None,
    means: MeanRecorder | None = None,
    noise_shares: Callable[[int], int] = lambda n: 0,
    write_first: Callable[[ModelState, int], ModelState] = lambda model, nodes: model,
) -> ServerAppOutcome:
    """Run the app's ServerApp to its end in this process; errors of the user's code are raised as they are.

    Raises RunFailed if the app came to its end although no exchange gave a reply, and ConfigurationError if it cannot
    start from `initial`.

    Args:
        most_nodes: that there can ever be, by what is known now: a strategy that waits for more is refused.
        on_results: gets what there is by then when the run ends, be it by an error or its privacy budget.
        initial: what its strategy starts from in place of its own model.
        on_refusal: gets what secure mode refuses of the app's own code, and may go on to hear of more; by default it
            ends the run.
        noised: whether secure sums have privacy noise.
        compressed: whether the updates in them lose a part, evenly.
        buffered: whether a training sums updates of several rounds.
        groups: those into which its trainings are cut.
        on_loaded: called when the app is imported, and nothing has run yet.
        means: takes the means of the trainings.
        noise_shares: of how many of these clients the noise shares are in any sum of so many.
        write_first: as in `SecureGrid`.
    """
    run_id = _begin(run)
    grid: ExchangeGrid = (
        SecureGrid(
            backend,
            run_id=run_id,
            most_nodes=most_nodes,
            on_refusal=on_refusal,
            noised=noised,
            compressed=compressed,
            buffered=buffered,
            groups=groups,
            means=means,
            noise_shares=noise_shares,
            write_first=write_first,
        )
        if aggregation == "secure"
        else PlainGrid(backend, run_id=run_id, most_nodes=most_nodes, means=means)
    )
    context = Context(
        run_id=run_id,
        node_id=SERVER_NODE,
        node_config={},
        state=RecordDict(),
        run_config=dict(run_config),
    )
    try:
        with legacy_rounds(grid), starting_from(initial, grid), averaging_views(), naming_dtypes(app.folder):
            server_app = load_server_app(app)
            if on_loaded is not None:
                on_loaded()
            server_app(grid, context)
    except (BudgetSpent, EnoughFound) as error:
        return ServerAppOutcome(state=grid.final_state(), stopped=str(error))
    finally:
        grid.report_figures()
        if on_results is not None:
            on_results(results_of(grid.result))
    grid.check_success()
    return ServerAppOutcome(state=grid.final_state())


def run_question(question: Question, *, backend: ExchangeBackend, run: str, aggregation: Aggregation) -> Answer:
    """Ask the clients of a run whose app has ClientApps that answer.

    Raises what `federated_statistics`, `ask_regression`, `ask_correlations` and `ask_survival` do.
    """
    run_id = _begin(run)
    grid = (SecureGrid if aggregation == "secure" else PlainGrid)(backend, run_id=run_id)
    if isinstance(question, RegressionQuery):
        return ask_regression(grid, question)
    if isinstance(question, CorrelationQuery):
        return ask_correlations(grid, question)
    if isinstance(question, SurvivalQuery):
        return ask_survival(grid, question)
    return answered(grid, question)


def _begin(run: str) -> int:
    """Tell Flower in which run this process is; the run's number."""
    run_id = run_id_of(run)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, SERVER_NODE, 0
    return run_id


def seed_generators(name: str) -> int:
    """Seed the generators that apps draw from without seeding them: a ServerApp that starts again draws the same.

    PyTorch's own begins with another seed in every process; if it is loaded, it is seeded as well. Returns the seed.

    Args:
        name: of the run; the seed is made from it.
    """
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    random.seed(seed)
    np.random.seed(seed)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)
    return seed


class _SeedTorch(MetaPathFinder):
    """Seeds PyTorch's generator once it has been imported: that takes seconds, and not every app needs it."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the finders after this one say of torch, with its loader made to seed; nothing of any other module."""
        del path, target
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_seed(module: ModuleType) -> None:
                load(module)
                module.manual_seed(self._seed)

            spec.loader.exec_module = load_and_seed  # type: ignore[method-assign]
        return spec
