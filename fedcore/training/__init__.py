"""Training on one client: models, the local loop, seeds. Knows torch, never the network."""

from fedcore.training.local import (
    Evaluation,
    OptimizerConfig,
    TrainSummary,
    evaluate,
    train,
)
from fedcore.training.seeds import derive_seed, seeded

__all__ = [
    "Evaluation",
    "OptimizerConfig",
    "TrainSummary",
    "derive_seed",
    "evaluate",
    "seeded",
    "train",
]
