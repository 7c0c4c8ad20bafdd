"""The examples of docs/extending.md do what the page says."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from fastapi import APIRouter, FastAPI
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from support.pages import examples
from support.serverside import site
from support.services import federation
from torch import nn

from fedcore.data import Split, client_data
from fedcore.federation import FederationFolder
from fedcore.flower.strategies import registry as strategies
from fedcore.training import (
    Batch,
    EngineConfig,
    OptimizerConfig,
    Recipe,
    engines,
    evaluate,
    local_engine,
    make_engine,
    train,
)
from server_app.http.audience import Audience, Audiences, ForOperators
from server_app.routes import operator

__all__ = ["federation"]


def run_example(section: str, **names: Any) -> dict[str, Any]:
    """The names after the code of a section has run among `names`."""
    for block in examples(section):
        exec(block, names)
    return names


def test_a_strategy() -> None:
    made = run_example("A strategy", **vars(strategies))
    config = {"strategy": "fedavg-decay", "server-lr": 1.0, "half-life": 1.0}
    name = config.pop("strategy")
    choice = made["STRATEGIES"][name]
    strategy = choice.make(**{choice.keys[key]: value for key, value in config.items()})
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
    made = run_example("A loss and a metric")
    loss, covered = made["loss"], made["covered"]
    generator = np.random.default_rng(0)
    data = Split(x=np.ones((400, 1), np.float32), y=generator.normal(size=400).astype(np.float32))
    model = nn.Linear(1, 1)
    train(local_engine(model, OptimizerConfig(lr=0.3), loss=loss), data, batch_size=0, steps=300, seed=0)
    result = evaluate(local_engine(model, loss=loss), data, metrics=[covered])
    assert result.values["covered"] == pytest.approx(0.9, abs=0.02)
    first, rest = (evaluate(local_engine(model, loss=loss), data.take(rows), metrics=[covered]).sums["covered"]
                   for rows in (np.arange(150), np.arange(150, 400)))  # fmt: skip
    assert tuple(np.add(first, rest)) == result.sums["covered"]


def test_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("channels_last")
    vars(module).update(run_example("An engine", __name__="example"))
    monkeypatch.setitem(sys.modules, f"{engines.__name__}.channels_last", module)
    monkeypatch.setitem(engines.ENGINES, "channels-last", "channels_last:ChannelsLastEngine")

    def model() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 2))

    def step(name: Any) -> tuple[list[torch.Tensor], bool]:
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


async def test_a_route(federation: FederationFolder, tmp_path: Path) -> None:
    router = APIRouter(prefix="/v1", route_class=ForOperators)
    run_example("A route", **{**vars(operator), "router": router})
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
    data = run_example("A data set")["load_wine"]()
    assert (len(data.train), len(data.test), data.train.x.dtype) == (142, 36, np.float32)
    assert np.allclose(data.train.x.mean(axis=0), 0, atol=1e-6)
    train, test = client_data(data, "iid", client=0, clients=4, seed=1)
    assert len(train) == pytest.approx(142 / 4, abs=1)
    assert len(test) > 0
