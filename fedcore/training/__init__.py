"""Training on one client: models, engines, the local loop, seeds. Knows torch, never the network."""

from fedcore.training.engines import Batch, Engine, EngineConfig, Proximal, Recipe, World, make_engine
from fedcore.training.loop import Evaluation, OptimizerConfig, TrainSummary, evaluate, local_engine, train
from fedcore.training.seeds import derive_seed, seeded

__all__ = [
    "Batch",
    "Engine",
    "EngineConfig",
    "Evaluation",
    "OptimizerConfig",
    "Proximal",
    "Recipe",
    "TrainSummary",
    "World",
    "derive_seed",
    "evaluate",
    "local_engine",
    "make_engine",
    "seeded",
    "train",
]
