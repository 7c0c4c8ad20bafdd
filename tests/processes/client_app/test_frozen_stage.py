"""A pipeline on two ranks of an agent, of which one has nothing to train: it works, and what fails ends the group."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.forked_ranks import spawn
from support.rank_app import wait_until_gone

from client_app.output import Output
from client_app.ranks.group import GroupSettings
from client_app.ranks.supervisor import LocalGroup
from fedcore.errors import FedcoreError
from fedcore.flower.app import AppBundle
from fedcore.state import ModelState
from fedcore.wire.tasks import Task

PYPROJECT = """
[project]
name = "frozen"
version = "1"
[tool.flwr.app.components]
serverapp = "frozen:app"
clientapp = "frozen:app"
[tool.flwr.app.config]
frozen = ""
optimizer = "sgd"
"""
APP = """
import os
import numpy as np
import torch
from torch import nn
from fedcore import local_app
from fedcore.data import Split
from fedcore.training import OptimizerConfig, seeded, train

RNG = np.random.default_rng(0)
DATA = Split(x=RNG.normal(size=(24, 6)).astype(np.float32), y=RNG.integers(0, 3, 24))

def make_model(config):
    with seeded(3):
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    for name in str(config["frozen"]).split():
        model.get_submodule(name).requires_grad_(False)
    return model

def make_optimizer(config):
    if config["optimizer"] == "raises":
        def on_one_rank(model):
            if os.environ["RANK"] == "0":
                raise KeyError("no such layer here")
            return torch.optim.SGD(model.parameters(), lr=0.1)
        return on_one_rank
    if config["optimizer"] == "head":
        return lambda model: torch.optim.SGD(model.get_submodule("4").parameters(), lr=0.1)
    return OptimizerConfig(lr=0.1)

def fit(engine, job):
    summary = train(engine, DATA, batch_size=8, epochs=2, seed=1)
    return {"num-examples": summary.examples, "loss": summary.loss}

app = local_app(model=make_model, optimizer=make_optimizer, train=fit, evaluate=fit)
"""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frozen")
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "frozen.py").write_text(APP)
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    shapes = {"0": (8, 6), "2": (8, 8), "4": (3, 8)}
    arrays = {f"{n}.weight": rng.normal(size=s).astype(np.float32) / 3 for n, s in shapes.items()}
    arrays |= {f"{n}.bias": np.zeros(s[0], np.float32) for n, s in shapes.items()}
    path = tmp_path / "model.safetensors"
    ModelState.from_arrays({name: arrays[name] for name in sorted(arrays, key=lambda n: (n[0], n[2] != "w"))}).save(
        path
    )
    return path


def group_of(app: Path, ranks: int) -> LocalGroup:
    settings = GroupSettings(
        app=app,
        app_sha256=AppBundle.from_folder(app).sha256,
        client_id=1,
        node_config={},
        ranks=ranks,
        engine={"engine": "pp"} if ranks > 1 else {},
    )
    return LocalGroup(settings, Output(name="client-1", stream=StringIO()), start_rank=spawn)


@pytest.mark.parametrize(
    "config",
    [{"frozen": "0"}, {"optimizer": "head"}],
    ids=["frozen", "an optimizer of the head alone"],
)
async def test_a_stage_without_anything_to_train(
    app: Path,
    model: Path,
    make_task: Callable[..., Task],
    tmp_path: Path,
    config: dict[str, Any],
) -> None:
    found = {}
    for ranks in (1, 2):
        group, out = group_of(app, ranks), tmp_path / f"out-{ranks}"
        try:
            await group.run(
                make_task(run_config={"frozen": "", "optimizer": "sgd", **config}, seconds=60.0), model, out
            )
        finally:
            await group.stop()
        found[ranks] = dict(ModelState.open(out))
    start = dict(ModelState.open(model))
    for name, array in found[1].items():
        np.testing.assert_allclose(found[2][name], array, rtol=0, atol=1e-6, err_msg=name)
    assert any((found[2][name] != start[name]).any() for name in start)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"frozen": "0 2 4"}, "parameter"),
        ({"optimizer": "raises"}, "KeyError"),
    ],
)
async def test_what_one_rank_cannot_build_ends_the_group(
    app: Path,
    model: Path,
    make_task: Callable[..., Task],
    tmp_path: Path,
    config: dict[str, Any],
    text: str,
) -> None:
    group = group_of(app, 2)
    try:
        await group.start()
        pids = group.pids
        with pytest.raises(FedcoreError, match=text):
            await group.run(
                make_task(run_config={"frozen": "", "optimizer": "sgd", **config}, seconds=60.0), model, tmp_path / "o"
            )
        wait_until_gone(pids)
    finally:
        await group.stop()
