"""What an algorithm does on one client: what it keeps and when that counts, and the length of a way with momentum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from torch import nn

from fedcore.data import Split
from fedcore.errors import ConfigurationError
from fedcore.flower.apps.engine_app import LocalApp, local_app
from fedcore.flower.apps.local_algorithms import CLIENTS_WEIGH_ONE, STRATEGY
from fedcore.flower.apps.own_model_store import ContextStore, FolderStore, OwnModelStore
from fedcore.flower.apps.personalization import Personal, with_strategy
from fedcore.flower.apps.tensor_app import LocalJob
from fedcore.state import ModelState, OwnModelFolder
from fedcore.training import OptimizerConfig, make_engine, train
from fedcore.training.algorithms import make_algorithm
from fedcore.training.engines import EngineConfig, Recipe, World

X = np.random.default_rng(1).normal(size=(12, 3)).astype(np.float32)
DATA = Split(x=X, y=(X @ [1.0, -2.0, 0.5]).astype(np.float32))


def squares(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (output[:, 0] - targets).square()


def network(config: Any) -> nn.Module:
    return nn.Linear(3, 1, bias=False)


def fit(engine: Any, job: LocalJob) -> dict[str, float]:
    summary = train(engine, DATA, batch_size=0, steps=3, seed=0, rule=job.rule)
    return {"num-examples": summary.examples}


def app() -> LocalApp:
    return local_app(
        model=network, optimizer=lambda config: OptimizerConfig(lr=0.05), train=fit, evaluate=fit, loss=squares
    )


def sent(control: float = 0.0) -> ModelState:
    return ModelState.from_arrays(
        {"weight": np.zeros((1, 3), np.float32), "control/weight": np.full((1, 3), control, np.float32)}
    )


def trained(
    store: OwnModelStore, server_round: int, aggregated_round: int | None, strategy: str = "scaffold"
) -> ModelState:
    message = {"server-round": server_round, STRATEGY: strategy, CLIENTS_WEIGH_ONE: True}
    job = LocalJob(config={}, node={}, message=message, client=1, aggregated_round=aggregated_round)
    result = app().run(job, sent(), trains=True, store=store)
    assert result.examples == 1  # and not 12
    state = result.state()
    assert state is not None
    return state


@pytest.fixture(params=["context", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> OwnModelStore:
    if request.param == "context":
        return ContextStore(Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={}))
    return FolderStore(store=OwnModelFolder(tmp_path / "local"), run="r", app_sha256="0" * 64)


def same(a: ModelState, b: ModelState) -> bool:
    return all(np.array_equal(a[name], b[name]) for name in a)


class TestAlternatingStates:
    """c_i begins at 0, so the first update is that of plain SGD; with another c_i it is another."""

    def test_an_update_that_was_in_no_sum_leaves_nothing_behind(self, store: OwnModelStore) -> None:
        first = trained(store, 1, aggregated_round=0)
        assert same(trained(store, 2, aggregated_round=0), first)
        assert same(trained(store, 3, aggregated_round=0), first)

    def test_an_update_that_was_in_its_sum_moves_the_client_on(self, store: OwnModelStore) -> None:
        first = trained(store, 1, aggregated_round=0)
        second = trained(store, 2, aggregated_round=1)
        assert not same(second, first)
        # The second was in no sum: the third begins where the second began.
        assert same(trained(store, 3, aggregated_round=1), second)
        assert same(trained(store, 4, aggregated_round=1), second)
        third = trained(store, 5, aggregated_round=4)
        assert not same(third, second)

    def test_where_nobody_knows_every_training_counts(self, store: OwnModelStore) -> None:
        first, second = (trained(store, number, aggregated_round=None) for number in (1, 2))
        assert not same(second, first)

    def test_another_run_begins_anew(self, tmp_path: Path) -> None:
        folder = OwnModelFolder(tmp_path / "local")
        stores = [FolderStore(store=folder, run=run, app_sha256="0" * 64) for run in ("one", "two")]
        first = trained(stores[0], 1, aggregated_round=0)
        trained(stores[0], 2, aggregated_round=1)
        assert same(trained(stores[1], 1, aggregated_round=0), first)

    def test_what_is_kept_is_no_model_of_the_client(self, tmp_path: Path) -> None:
        folder = OwnModelFolder(tmp_path / "local")
        trained(FolderStore(store=folder, run="r", app_sha256="0" * 64), 1, aggregated_round=0)
        assert folder.load() is None


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
def test_the_length_is_what_a_constant_gradient_moves_the_model_by(momentum: float, nesterov: bool) -> None:
    if nesterov and not momentum:
        pytest.skip("PyTorch has no Nesterov steps without momentum")

    def one(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return output[:, 0]  # of x = (1, 1, 1): the gradient of every weight is 1

    recipe = Recipe(
        build=lambda: network({}),
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=momentum, nesterov=nesterov),
        loss=local_app(model=network, optimizer=lambda c: OptimizerConfig(), train=fit, evaluate=fit, loss=one).loss,
    )
    engine = make_engine(recipe, EngineConfig(), World())
    algorithm = make_algorithm("fednova", engine, {"weight"}, {})
    assert algorithm is not None
    algorithm.begin()
    before = engine.snapshot()[0]
    ones = Split(x=np.ones((2, 3), np.float32), y=np.zeros(2, np.float32))
    train(engine, ones, batch_size=0, steps=7, seed=0, rule=algorithm)
    moved = (before - engine.snapshot()[0]).flatten().tolist()
    assert moved == pytest.approx([algorithm.length] * 3, rel=1e-5)


class TestPersonalStrategies:
    def test_each_keeps_what_its_paper_keeps(self) -> None:
        assert with_strategy(Personal(), {"strategy": "fedbn"}) == Personal(batch_norm=True)
        assert with_strategy(Personal(), {"strategy": "ditto", "ditto-lambda": 0.5}) == Personal(ditto=0.5)
        found = with_strategy(Personal(), {"strategy": "fedper", "personal-layers": "head.*, norm.*"})
        assert found == Personal(patterns=("head.*", "norm.*"))

    def test_others_leave_the_app_its_own(self) -> None:
        assert with_strategy(Personal(patterns=("head.*",)), {"strategy": "fedavg"}) == Personal(patterns=("head.*",))

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ({"strategy": "fedper"}, "personal-layers"),
            ({"strategy": "ditto", "ditto-lambda": 0.0}, "ditto-lambda = 0"),
        ],
    )
    def test_what_means_nothing_is_refused(self, config: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            with_strategy(Personal(), config)

    def test_a_personal_head_has_no_control_variate(self) -> None:
        def body_and_head(config: Any) -> nn.Module:
            return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))

        client = local_app(
            model=body_and_head,
            optimizer=lambda config: OptimizerConfig(),
            train=fit,
            evaluate=fit,
            personal=lambda config: Personal(patterns=("1.*",)),
        )
        assert client.trained({}) == ("0.weight", "0.bias")
