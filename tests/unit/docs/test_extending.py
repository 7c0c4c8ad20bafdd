"""The files that docs/extending.md shows do what the page says."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import httpx
import numpy as np
import pytest
import torch
from fastapi import FastAPI
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvgM
from flwr.supercore.task_identity import TaskIdentity
from support.pages import shown_files
from support.raising import raises
from support.serverside import site
from support.services import federation
from torch import nn

import fedcore
from fedcore.data import Split, client_data
from fedcore.errors import ConfigurationError
from fedcore.federation import FederationFolder
from fedcore.flower.strategies.registry import STRATEGIES, make_strategy
from fedcore.monitoring.trackers import TrackedRun
from fedcore.run.engine_config import ENGINES
from fedcore.training import (
    Batch,
    EngineConfig,
    OptimizerConfig,
    Recipe,
    evaluate,
    local_engine,
    make_engine,
    train,
)
from server_app.http.audience import Audience, Audiences

__all__ = ["federation"]


EXTENSIONS = Path(__file__).parents[3] / "examples" / "extensions"


def load(name: str) -> ModuleType:
    """A file of the page as a module; one that is loaded already registers nothing a second time."""
    path = EXTENSIONS / name
    if path.stem not in sys.modules:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    return sys.modules[path.stem]


@pytest.fixture(autouse=True)
def nothing_stays_registered() -> Iterator[None]:
    yield
    STRATEGIES.unregister("fedavg-decay")
    STRATEGIES.unregister("fedavg-warm")
    ENGINES.unregister("channels-last")
    sys.modules.pop("registered", None)


def test_the_page_shows_every_file() -> None:
    files = {path.relative_to(EXTENSIONS).as_posix() for path in EXTENSIONS.rglob("*.py")}
    assert files <= set(shown_files("extending.md"))
    assert all((EXTENSIONS / name).is_file() for name in shown_files("extending.md"))


def test_a_registered_strategy() -> None:
    kind = load("registered.py").FedAvgWarm
    strategy = make_strategy({"strategy": "fedavg-warm"})
    assert isinstance(strategy, FedAvgM)
    assert type(strategy) is kind


def test_a_strategy() -> None:
    kind = load("fedavg_decay/fedavg_decay.py").FedAvgDecay
    fedcore.register("strategy", "fedavg-decay")(kind)
    config = {"strategy": "fedavg-decay", "server-lr": 1.0, "half-life": 1.0}
    with raises(ConfigurationError, numbers=[0]):
        make_strategy({**config, "half-life": 0.0})
    strategy = make_strategy(config)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 0
    strategy.current_arrays = ArrayRecord({"w": torch.zeros(2)})
    metrics = MetricRecord({"num-examples": 4})
    for server_round, moved in ((1, 1.0), (2, 0.5)):
        before = strategy.current_arrays.to_torch_state_dict()["w"]
        content = {"arrays": ArrayRecord({"w": before + 1}), "metrics": metrics}
        reply = Message(content=RecordDict(content), dst_node_id=1, message_type="train")
        arrays, _ = strategy.aggregate_train(server_round, [reply])
        assert arrays is not None
        assert (arrays.to_torch_state_dict()["w"] - before).tolist() == [moved, moved]


def test_a_loss_and_a_metric() -> None:
    loss, covered = load("loss_and_metric.py").loss, load("loss_and_metric.py").covered
    generator = np.random.default_rng(0)
    data = Split(x=np.ones((400, 1), np.float32), y=generator.normal(size=400).astype(np.float32))
    model = nn.Linear(1, 1)
    train(local_engine(model, OptimizerConfig(lr=0.3), loss=loss), data, batch_size=0, steps=300, seed=0)
    result = evaluate(local_engine(model, loss=loss), data, metrics=[covered])
    assert result.values["covered"] == pytest.approx(0.9, abs=0.02)
    first, rest = (evaluate(local_engine(model, loss=loss), data.take(rows), metrics=[covered]).sums["covered"]
                   for rows in (np.arange(150), np.arange(150, 400)))  # fmt: skip
    assert tuple(np.add(first, rest)) == result.sums["covered"]


def test_an_engine() -> None:
    fedcore.register("engine", "channels-last")(load("channels_last/channels_last.py").ChannelsLastEngine)

    def model() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 2))

    def step(name: str) -> tuple[list[torch.Tensor], bool]:
        recipe = Recipe(build=model, optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=0.5))
        engine = make_engine(recipe, EngineConfig(engine=name))
        x, y = torch.arange(64.0).reshape(2, 2, 4, 4) / 64, torch.tensor([0, 1])
        engine.step(Batch(x=x, y=y, total=2))
        last = engine.model[0].weight.is_contiguous(memory_format=torch.channels_last)
        return [p.detach().clone() for p in engine.parameters()], last

    (ours, last), (single, first) = step("channels-last"), step("single")
    assert (last, first) == (True, False)
    for one, other in zip(ours, single, strict=True):
        torch.testing.assert_close(one, other)


def test_a_tracker(tmp_path: Path) -> None:
    tracker = load("csv_tracker/csv_tracker.py").CsvTracker(str(tmp_path / "new"), TrackedRun(name="run", app="tiny"))
    tracker.log(1, {"loss": 0.5})
    tracker.close(succeeded=True)
    lines = (tmp_path / "new" / "run.csv").read_text().splitlines()
    assert lines == ["1,loss,0.5", ",status,finished"]


async def test_a_route(federation: FederationFolder, tmp_path: Path) -> None:
    router = load("roster_route.py").router
    scope = {"type": "http", "method": "GET", "path": "/v1/roster", "headers": []}
    assert Audiences(router.routes).of(scope) is Audience.OPERATORS
    app = FastAPI()
    app.include_router(router)
    async with site(federation, tmp_path) as made:
        app.state.services = made.services
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://server") as client:
            answer = await client.get("/v1/roster")
    assert answer.json()["1"] == "client-1"


def test_a_data_set() -> None:
    data = load("wine.py").load_wine()
    assert (len(data.train), len(data.test), data.train.x.dtype) == (142, 36, np.float32)
    assert np.allclose(data.train.x.mean(axis=0), 0, atol=1e-6)
    train, test = client_data(data, "iid", client=0, clients=4, seed=1)
    assert len(train) == pytest.approx(142 / 4, abs=1)
    assert len(test) > 0
