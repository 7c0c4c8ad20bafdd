"""Boosted trees by queries, in memory: in secure mode and in plain mode the trees of the pooled rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from support.boosting import boosted_over_sites, made_table
from support.raising import raises

from fedcore import LocalJob, trees_app, trees_server
from fedcore.data import Split
from fedcore.errors import AppError, ConfigurationError
from fedcore.flower.memory_app import load_app
from fedcore.flower.records import arrays_from_state
from fedcore.flower.trees.client import TreesApp
from fedcore.flower.trees.server import Sites
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.state import ModelState
from fedcore.trees import BoostingSettings, Cuts, Ensemble
from fedcore.trees.cuts import LAST_CUT

SITES = 3
X, Y = made_table(5, objective="binary:logistic", rows=180)
BOUNDS = {**{f"x{i}": (-5.0, 5.0) for i in range(X.shape[1])}, "y": (0.0, 1.0)}
CONFIG = {"num-server-rounds": 2, "max-depth": 2, "bins": 8, "objective": "binary:logistic"}


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 0)


def data(job: LocalJob) -> tuple[Split, Split]:
    rows = np.arange(len(X)) % SITES == int(job.node["partition-id"])
    part = Split(x=X[rows], y=Y[rows].astype(np.int64))
    return part, part


def client() -> TreesApp:
    return trees_app(data=data, bounds=lambda config: BOUNDS)


def trained(mode: str = "secure", initial: ModelState | None = None, **config: Any) -> Ensemble:
    app = client()
    with load_app((app, trees_server(app)), {**CONFIG, **config}) as found:
        state = (
            Simulation(
                app=found.app,
                clients=SITES,
                run_config=found.app.run_config,
                settings=JobSettings.from_mapping({"aggregation": mode}),
                initial=initial,
            )
            .run()
            .state
        )
    assert state is not None
    return Ensemble.from_arrays({name: state[name] for name in state})


def same(one: Ensemble, other: Ensemble) -> bool:
    arrays = one.to_arrays(), other.to_arrays()
    return all(np.array_equal(arrays[0][name], arrays[1][name]) for name in arrays[0])


@pytest.mark.parametrize("mode", ["secure", "plain"])
def test_the_trees_are_those_of_the_pooled_rows(mode: str) -> None:
    model = trained(mode)
    assert len(model.trees) == 2
    assert model.base_score == np.float32(Y.mean())
    alone = boosted_over_sites(
        X, Y, model.settings, model.cuts, trees=2, base_score=model.base_score, sites=2
    )  # all rows at one site
    assert same(model, alone)


def test_an_earlier_model_grows_on() -> None:
    whole = direct(Direct({}))
    part = Ensemble(whole.settings, whole.cuts, whole.names, whole.base_score, 1, whole.trees[:1])
    earlier = ModelState.from_arrays(part.to_arrays())
    assert same(trained("plain", initial=earlier), whole)
    with raises(ConfigurationError, check="trees-grown"):
        trained("plain", initial=earlier, **{"num-server-rounds": 1})


class Direct(Grid):
    """Calls the app of each node at once; `absent` says which nodes do not answer a query, by its number from 0 on."""

    def __init__(self, absent: dict[int, set[int]], *, restarts: bool = False) -> None:
        self.absent, self.restarts = absent, restarts
        self.app, self.queries = client(), 0
        self.contexts = [
            Context(run_id=1, node_id=i, node_config={"partition-id": i}, state=RecordDict(), run_config=dict(CONFIG))
            for i in range(SITES)
        ]

    def set_run(self, run: Run) -> None: ...

    @property
    def run(self) -> Run:
        return Run.create_empty(1)

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return range(SITES)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        messages = list(messages)
        absent = self.absent.get(self.queries, set()) if messages else set()
        self.queries += bool(messages)
        for message in messages:
            node = message.metadata.dst_node_id
            app = client() if self.restarts else self.app
            if node in absent:
                yield Message(Error(code=0, reason="away"), reply_to=message)
            else:
                yield app(message, self.contexts[node])


def direct(grid: Direct) -> Ensemble:
    """The final model of a run of the ServerApp over this grid, as the sites got it with the last test."""
    models: list[Any] = []
    send = grid.send_and_receive

    def watched(messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        messages = list(messages)
        models.extend(one.content.array_records["arrays"] for one in messages[:1] if one.content.array_records)
        return send(messages, timeout=timeout)

    grid.send_and_receive = watched  # type: ignore[method-assign]
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=dict(CONFIG))
    trees_server(client())(grid, context)
    return Ensemble.from_arrays({name: array.numpy() for name, array in models[-1].items()})


def test_a_site_that_starts_again_before_each_query_answers_the_same() -> None:
    assert same(direct(Direct({}, restarts=True)), direct(Direct({})))


def test_a_level_is_asked_again_of_the_same_clients() -> None:
    content = direct_content()
    grid = Direct({0: {1}, 2: {2}, 3: {0, 1}})
    waits: list[float] = []
    sites = Sites(grid, range(SITES), wait=waits.append)
    first, again = (sites.sums("tree_test", content, "1")[0] for _ in range(2))
    assert np.array_equal(first, again)
    assert (grid.queries, len(waits)) == (5, 3)


def test_statistics_are_of_all_clients() -> None:
    """They take two queries here."""
    grid = Direct({1: {2}})
    assert Sites(grid, range(SITES), wait=lambda seconds: None).statistics(BOUNDS).clients == SITES
    assert grid.queries == 4
    with raises(AppError, check="clients-differ"):
        Sites(Direct({i: {0} for i in range(8)}), range(SITES), wait=lambda seconds: None).statistics(BOUNDS)


def test_clients_that_stay_away_end_the_run_by_name() -> None:
    content = direct_content()
    sites = Sites(Direct({1: {2}, 2: {2}, 3: {2}, 4: {2}}), range(SITES), wait=lambda seconds: None)
    assert sites.sums("tree_test", content, "1")[1] == len(X)
    with raises(AppError, check="clients-differ"):
        sites.sums("tree_test", content, "1")


def direct_content() -> RecordDict:
    model = Ensemble(BoostingSettings(max_depth=2), Cuts.of([[0.0, LAST_CUT]] * X.shape[1]), tuple(BOUNDS)[:-1], 0.5, 1)
    return RecordDict({"arrays": arrays_from_state(ModelState.from_arrays(model.to_arrays()))})


@pytest.mark.parametrize(
    ("key", "value", "check"), [("bins", 1, "bins"), ("max-depth", 99, "max-depth"), ("objective", "x", "objective")]
)
def test_a_run_config_that_makes_no_sense_ends_before_the_first_tree(key: str, value: object, check: str) -> None:
    with raises(ConfigurationError, check=check):
        trained(**{key: value})
