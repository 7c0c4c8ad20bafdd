"""Training runs that are the same whatever the engine: what one rank and several ranks are compared on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedcore.data.types import Split
from fedcore.state import MemorySink, ModelState
from fedcore.training import seeded
from fedcore.training.engines import Engine, EngineConfig, Recipe, World, make_engine
from fedcore.training.models import GPT, GPTConfig

TINY = GPTConfig(vocabulary=21, context=8, layers=6, heads=4, width=16)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run; the fields that are not of the engine decide the result."""

    engine: dict[str, Any] = field(default_factory=dict)
    model: GPTConfig = TINY
    dtype: torch.dtype = torch.float64
    optimizer: str = "sgd"
    examples: int = 23
    batch_size: int = 8
    steps: int = 50
    clip_norm: float = 0.0
    evaluate: bool = True


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """losses: mean of each batch. state: at the end, from rank 0. logits: of the first examples, where they are."""

    losses: list[float]
    state: dict[str, np.ndarray]
    logits: np.ndarray | None
    held: int


def model_of(run: Run) -> nn.Module:
    return GPT(run.model).to(run.dtype)


def write_initial(run: Run, path: Path) -> ModelState:
    """A file with fresh weights for the run's model."""
    with seeded(1):
        model = model_of(run)
    state = ModelState.from_arrays({name: t.detach().numpy() for name, t in model.state_dict().items()})
    state.save(path)
    return state


def engine_of(run: Run, *, build: Callable[[], nn.Module] | None = None, keep_weights: bool = False) -> Engine:
    """The engine that the run names, on the current process group; for the run's model unless `build` makes another."""

    def optimizer(module: nn.Module) -> torch.optim.Optimizer:
        if run.optimizer == "adam":
            return torch.optim.Adam(module.parameters(), lr=3e-3, foreach=True)
        return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)

    world = World.current()
    recipe = Recipe(build=build or (lambda: model_of(run)), optimizer=optimizer, keep_weights=keep_weights)
    return make_engine(recipe, EngineConfig.from_mapping(run.engine, ranks=world.size), world)


def examples_of(run: Run) -> Split:
    generator = np.random.default_rng(3)
    x = generator.integers(0, run.model.vocabulary, (run.examples, run.model.context))
    return Split(x=x, y=(x * 3 + 1) % run.model.vocabulary)


def trained(run: Run, path: Path, *, everywhere: bool = True) -> Outcome:
    """Load the weights in `path` (of rank 0 alone unless `everywhere`), train, and save."""
    engine = engine_of(run)
    first = engine.world.rank == 0
    engine.load(ModelState.open(path) if first or everywhere else None)
    data, losses = examples_of(run), []
    engine.model.train()
    with engine.seeded(11):
        for batch in engine.batches(data, batch_size=run.batch_size, seed=5, steps=run.steps):
            loss = engine.step(batch, clip_norm=run.clip_norm)
            losses.append(float(engine.total(loss)) / batch.total)
    engine.model.eval()
    logits = next(iter(engine.passes(data, batch_size=run.examples)))
    output = engine.outputs(logits) if run.evaluate else None
    return Outcome(
        losses=losses,
        state=saved(engine),
        logits=None if output is None else output.numpy(),
        held=sum(p.numel() for p in map(_local, engine.parameters())),
    )


_ALONE: dict[str, Outcome] = {}


def trained_alone(run: Run, path: Path) -> Outcome:
    """The run in this process, from the weights of `write_initial`; once, for all that are compared with it."""
    if repr(run) not in _ALONE:
        _ALONE[repr(run)] = trained(run, path)
    return _ALONE[repr(run)]


def with_history(run, path, with_optimizer):
    """Train, save with the optimizer's state; or load such a file, train, and save again."""
    engine = engine_of(run)
    first = engine.world.rank == 0
    start = with_optimizer if with_optimizer.exists() else path
    engine.load(ModelState.open(start) if first else None, optimizer=start is with_optimizer)
    for batch in engine.batches(examples_of(run), batch_size=run.batch_size, seed=5, steps=run.steps):
        engine.step(batch)
    return saved(engine, optimizer=True)


def saved(engine: Engine, **what: Any) -> dict[str, np.ndarray]:
    """The engine's state on rank 0, nothing on the others; `what` as for Engine.save."""
    sink = MemorySink(engine.layout(**what)) if engine.world.rank == 0 else None
    engine.save(sink, **what)
    return {} if sink is None else dict(sink.state())


def _local(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter
