"""Adopted scripts run, and a client's epoch is that of the script itself, run as it is on the same examples.

The script runs unchanged in this process. Its DataLoader gets the client's examples in place of its own, its models the
app's first weights when the optimizer is made, and torch the seed of the app when the first batch is read; the second
epoch ends it.
"""

from __future__ import annotations

import gc
import importlib
import os
import random
import runpy
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

import fedcore
from fedcore import LocalJob
from fedcore.cli.new.adoption import adopt
from fedcore.flower.app import FlowerApp
from fedcore.flower.memory_app import fresh_modules
from fedcore.state import ModelState
from fedcore.training import derive_seed

SCRIPTS = Path(__file__).parents[2] / "support" / "scripts" / "adopted"
NAMES = sorted(path.name.partition(".")[0] for path in SCRIPTS.glob("*.txt"))
BOUND = 1e-6
CLIENT = 7


class EpochOver(BaseException):
    """The script has trained for one epoch."""


@pytest.fixture(params=NAMES)
def app(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """A script's app; where it says what a person has to write, that is taken out."""
    name = request.param
    monkeypatch.chdir(tmp_path)
    script = tmp_path / f"{name}.py"
    script.write_text((SCRIPTS / f"{name}.py.txt").read_text())
    adopt(tmp_path / f"app-{name}", script)
    return name, tmp_path / f"app-{name}"


def filled_in(folder: Path) -> None:
    """The schedule that goes by earlier results is left away."""
    for path in folder.glob("*/loop.py"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if "raise NotImplementedError" not in line))


def test_it_is_checked_runs_and_trains_as_the_script_does(app: tuple[str, Path], capsys: Any) -> None:
    name, folder = app
    report = fedcore.check(folder, clients=2, policy="own")
    assert report.ok == (name != "flat")
    if name == "flat":
        assert all("loop.py" in str(error) for error in report.errors)
        filled_in(folder)
        assert fedcore.check(folder, clients=2, policy="own").ok
    run = fedcore.simulate(folder, clients=2, rounds=1, aggregation="plain", policy="own", progress=False)
    assert run.model is not None
    assert name in ("amp", "gan", "stream") or run.metrics
    difference = largest_difference(*trained(name, folder))
    with capsys.disabled():
        sys.stdout.write(f"{name:<14} {difference:.1e}\n")
    assert difference <= BOUND


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


def trained(name: str, folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The model after one epoch of one client: by the app, and by the script."""
    loaded = FlowerApp.load(folder)
    with fresh_modules(loaded):
        sys.path.insert(0, str(folder))
        package = f"app_{name}_app"
        client = importlib.import_module(f"{package}.app").client
        config = dict(loaded.run_config)
        if name == "tabular":  # whose batches fedcore draws: all examples at once
            config["batch-size"] = 0
        job = LocalJob(
            config=config, node={"partition-id": 0, "num-partitions": 2}, message={"server-round": 1}, client=CLIENT
        )
        engine = client.warm_for(config, None).engine
        start = {key: value.clone() for key, value in engine.module.state_dict().items()}
        examples = importlib.import_module(f"{package}.data").data(job)[0]
        client.run(job, state_of(start), trains=True, store=cast(Any, None))
        by_app = {key: value.clone() for key, value in engine.module.state_dict().items()}
        sys.path.remove(str(folder))
    seed = derive_seed("order", int(config["seed"]), 1, CLIENT)
    return by_app, by_script(folder.parent / f"{name}.py", start, examples, seed, whole=name == "tabular")


def state_of(tensors: dict[str, torch.Tensor]) -> ModelState:
    return ModelState.from_arrays({name: tensor.numpy() for name, tensor in tensors.items()})


def by_script(
    path: Path, start: dict[str, torch.Tensor], examples: Any, seed: int, *, whole: bool
) -> dict[str, torch.Tensor]:
    """The same from the script."""
    models: dict[str, nn.Module] = {}
    loaders: list[Any] = []
    passes = 0
    make_loader, iterate, make_optimizer = DataLoader.__init__, DataLoader.__iter__, torch.optim.Optimizer.__init__

    def loader(self: Any, dataset: Any, *words: Any, **options: Any) -> None:
        if not loaders:
            loaders.append(self)
            dataset = examples
            if "sampler" in options:
                options["sampler"] = RandomSampler(examples)
            if whole:
                options["batch_size"] = len(examples)
        make_loader(self, dataset, *words, **options)

    def passing(self: Any) -> Any:
        nonlocal passes
        if self is loaders[0]:
            passes += 1
            if passes > 1:
                raise EpochOver
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.manual_seed(seed)
        return iterate(self)

    def optimizer(self: Any, params: Any, *words: Any, **options: Any) -> None:
        make_optimizer(self, params, *words, **options)
        own = {id(one) for group in self.param_groups for one in group["params"]}
        for prefix, part in parts(start):
            for module in [one for one in gc.get_objects() if isinstance(one, nn.Module)]:
                if {id(one) for one in module.parameters()} >= own and shapes(module.state_dict()) == shapes(part):
                    module.load_state_dict(part)
                    models[prefix] = module

    DataLoader.__init__, DataLoader.__iter__ = loader, passing  # type: ignore[method-assign]
    torch.optim.Optimizer.__init__ = optimizer  # type: ignore[method-assign]
    words, sys.argv = sys.argv, [str(path)]
    try:
        runpy.run_path(str(path), run_name="__main__")
        raise AssertionError("the script has no second epoch")
    except EpochOver:
        return {
            f"{prefix}{key}": value.clone() for prefix, one in models.items() for key, value in one.state_dict().items()
        }
    finally:
        sys.argv = words
        DataLoader.__init__, DataLoader.__iter__ = make_loader, iterate  # type: ignore[method-assign]
        torch.optim.Optimizer.__init__ = make_optimizer  # type: ignore[method-assign]
        os.chdir(path.parent)


def shapes(state: dict[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in state.items()}


def parts(start: dict[str, torch.Tensor]) -> list[tuple[str, dict[str, torch.Tensor]]]:
    """The models of the app by the beginning of their names: one, or those of the GAN."""
    heads = sorted({key.partition(".")[0] for key in start})
    if heads != ["netD", "netG"]:
        return [("", start)]
    return [
        (f"{head}.", {key.partition(".")[2]: value for key, value in start.items() if key.startswith(head)})
        for head in heads
    ]
