"""Training runs of one engine, described by plain values, so that any rank of any group can repeat them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcore.data import Split
from fedcore.run.engine_config import EngineConfig
from fedcore.state import MemorySink, ModelState
from fedcore.training import seeded
from fedcore.training.engines import Engine, Proximal, Recipe, World, make_engine
from fedcore.training.engines.building import ParallelPlan

FEATURES, CLASSES, LENGTH = 12, 5, 6


class Tied(nn.Module):
    """Next-token scores whose embedding and output layer are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()) for _ in range(3))
        self.output = nn.Linear(8, 11, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.output(hidden)

    def parallel_plan(self) -> ParallelPlan:
        return ParallelPlan(blocks=("blocks.0", "blocks.1", "blocks.2"))


class Positions(Tied):
    """The same with fixed positions in a buffer that no state holds."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("positions", torch.linspace(-1, 1, LENGTH * 8).view(LENGTH, 8), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens) + self.positions
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.output(hidden)


def layers(*, norm: bool = False, dropout: float = 0.0) -> nn.Sequential:
    """Two hidden layers whose widths no number of ranks divides."""
    between = [nn.BatchNorm1d(13)] if norm else []
    return nn.Sequential(
        nn.Linear(FEATURES, 13), *between, nn.Tanh(), nn.Dropout(dropout), nn.Linear(13, 7), nn.Tanh(),
        nn.Linear(7, CLASSES),
    )  # fmt: skip


MODELS: dict[str, Callable[[], nn.Module]] = {
    "layers": layers,
    "norm": lambda: layers(norm=True),
    "dropout": lambda: layers(dropout=0.4),
    # Wide enough for a low-rank approximation to be worth while.
    "wide": lambda: nn.Sequential(
        nn.Linear(FEATURES, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, CLASSES)
    ),
    "tied": Tied,
    "positions": Positions,
}
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.2),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run. engine: settings as in a site's file. examples, batch_size, steps, sharded: see Engine.batches."""

    engine: dict[str, Any] = dataclasses.field(default_factory=dict)
    model: str = "layers"
    optimizer: str = "sgd"
    examples: int = 90
    batch_size: int = 16
    steps: int = 50
    clip_norm: float = 0.0
    mu: float = 0.0

    def single(self) -> Case:
        """The same work on one rank."""
        shared = {key: value for key, value in self.engine.items() if key in ("precision", "checkpoint")}
        return dataclasses.replace(self, engine={"engine": "single", **shared})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """losses: of each step, over the whole batch. weights: the state at the end; empty on ranks other than 0."""

    losses: list[float]
    weights: dict[str, NDArray[Any]]


def world() -> World:
    """Of this process; the tests' own process is a world of one."""
    return World.current() if dist.is_initialized() else World()


def engine_of(case: Case) -> Engine:
    """An engine with the weights that every run of the model starts from."""
    here = world()
    recipe = Recipe(build=MODELS[case.model], optimizer=OPTIMIZERS[case.optimizer])
    engine = make_engine(recipe, EngineConfig.from_mapping(case.engine, ranks=here.size), here)
    engine.load(start_of(case.model))
    return engine


def start_of(model: str) -> ModelState:
    """The initial state of a model."""
    with seeded(7):
        module = MODELS[model]()
    return ModelState.from_arrays({name: tensor.numpy() for name, tensor in module.state_dict().items()})


def data_of(case: Case) -> Split:
    """Made-up examples with something to learn."""
    rng = np.random.default_rng(3)
    if case.model in ("tied", "positions"):
        x = rng.integers(0, 11, size=(case.examples, LENGTH))
        return Split(x=x, y=(x * 3 + 1) % 11)
    x = rng.normal(size=(case.examples, FEATURES)).astype(np.float32)
    return Split(x=x, y=np.abs(x[:, :CLASSES]).argmax(axis=1))


def saved(engine: Engine, *, optimizer: bool = False) -> dict[str, NDArray[Any]]:
    """What the engine saves, on rank 0."""
    sink = MemorySink(engine.layout(optimizer=optimizer)) if engine.world.rank == 0 else None
    engine.save(sink, optimizer=optimizer)
    return {} if sink is None else {name: array.copy() for name, array in sink.state().items()}


def train(case: Case) -> Outcome:
    """The whole run, on this rank."""
    engine = engine_of(case)
    rule = Proximal(mu=case.mu, anchor=engine.snapshot()) if case.mu else None
    losses = []
    engine.model.train()
    with engine.seeded(11):
        for batch in engine.batches(data_of(case), batch_size=case.batch_size, seed=5, steps=case.steps):
            loss = engine.step(batch, clip_norm=case.clip_norm, rule=rule)
            losses.append(float(engine.world.sum(loss)) / batch.total)
    outcome = Outcome(losses=losses, weights=saved(engine))
    engine.close()
    return outcome
