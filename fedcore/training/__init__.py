"""Training on one client: models, engines, the local loop, seeds. Knows torch, never the network.

In federated averaging (McMahan et al. 2017) each client starts from the global model, takes some steps of SGD on its
own data, and sends back the difference. `train` is that local loop and `evaluate` its counterpart; both run on an
`Engine`, which decides how one or many ranks work on a step together. Variants of the local objective are here as well:
the proximal pull of FedProx and Ditto (`proximal`), and which tensors are federated at all (`shared_tensors`).

What must hold: a seed is derived from what is done (run, round, client), never from when or where, so that a run
repeats bit for bit (`seeds`); the loss of an example does not depend on the batch or the rank that it lands in, and
one that does is declared (`losses`); figures are made of sums that add up over batches, ranks and sites (`metrics`).
"""

from fedcore.system.workers.step_counter import counted_steps
from fedcore.training.engines import Batch, Engine, EngineConfig, LocalRule, Proximal, Recipe, World, make_engine
from fedcore.training.loop import Evaluation, TrainSummary, evaluate, local_engine, outputs, train
from fedcore.training.losses import Loss
from fedcore.training.metrics import Metric
from fedcore.training.optimizers import OptimizerConfig
from fedcore.training.seeds import derive_seed, seeded

__all__ = [
    "Batch",
    "Engine",
    "EngineConfig",
    "Evaluation",
    "LocalRule",
    "Loss",
    "Metric",
    "OptimizerConfig",
    "Proximal",
    "Recipe",
    "TrainSummary",
    "World",
    "counted_steps",
    "derive_seed",
    "evaluate",
    "local_engine",
    "make_engine",
    "outputs",
    "seeded",
    "train",
]
