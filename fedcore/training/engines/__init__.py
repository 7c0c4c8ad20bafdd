"""Engines: one model trained by one rank or by many, behind one interface.

Whatever the engine, a step means the same: the gradient of the mean loss over the whole batch, clipped by its norm over
the whole model, then one step of the optimizer. So a client's result does not depend on how many devices it has, but
for rounding (docs/adr/0010-engines-and-ranks.md).

    single, ddp    the whole model on each rank (Li et al. 2020, "PyTorch Distributed")       `replicated`
    fsdp, hsdp     parameters, gradients and optimizer state sharded (Zhao et al. 2023)       `fsdp`
    tp, ddp-tp     each layer split over ranks (Shoeybi et al. 2019, "Megatron-LM")           `tp`
    pp             consecutive layers on consecutive ranks (Huang et al. 2019, "GPipe")       `pp`, `stages`

Packages add others as entry points of the group `fedcore.engines` (docs/extending.md). `base` is the interface, and
`stepping` its steps; `batches` says which rank works on which examples, `streams` reads what has no rows to pick,
`own_loops` averages the gradients of other loops, `building` makes a model ready, `transfer` moves its state in and
out. All ranks make the same calls in the same order, since most of them wait for the others.
"""

from __future__ import annotations

from fedcore.run.engine_config import ENGINES, EngineConfig
from fedcore.training.engines.base import Engine
from fedcore.training.engines.batches import Batch
from fedcore.training.engines.stepping import MakeOptimizer, Recipe
from fedcore.training.engines.world import World
from fedcore.training.rules import LocalRule, Proximal

__all__ = [
    "ENGINES",
    "Batch",
    "Engine",
    "EngineConfig",
    "LocalRule",
    "MakeOptimizer",
    "Proximal",
    "Recipe",
    "World",
    "make_engine",
]


def make_engine(recipe: Recipe, config: EngineConfig | None = None, world: World | None = None) -> Engine:
    """The engine that `config` names, on the ranks of `world`; by default one rank, or the current process group.

    Raises ConfigurationError for a model or a number of ranks that the engine cannot work with, UnknownName for an
    engine that is not installed here.
    """
    world = world or World.current()
    config = config or EngineConfig.from_mapping({}, ranks=world.size)
    kind: type[Engine] = ENGINES[config.engine]
    return kind(recipe, config, world)
