"""The ClientApp: next-token prediction on sequences that a seed makes."""

import time
from functools import lru_cache

import numpy as np
from flwr.app import UserConfig
from torch import nn

from fedcore.data import Split
from fedcore.flower.apps.engine_app import LocalJob, Metrics, local_app
from fedcore.flower.apps.personalization import Personal
from fedcore.training import Engine, OptimizerConfig, evaluate, seeded, train
from fedcore.training.models.gpt import GPT, GPTConfig

SHAPE = GPTConfig(vocabulary=12, context=8, layers=4, heads=4, width=16)
EXAMPLES = 20


def make_model(config: UserConfig) -> nn.Module:
    with seeded(7):
        return GPT(SHAPE)


def make_optimizer(config: UserConfig) -> OptimizerConfig:
    return OptimizerConfig(lr=float(config["lr"]), momentum=float(config["momentum"]))


@lru_cache(maxsize=64)
def data(client: int) -> Split:
    """Sequences that count up from a random start, in steps that differ from client to client."""
    start = np.random.default_rng(client).integers(0, SHAPE.vocabulary, size=(EXAMPLES, 1))
    tokens = (start + (client % 3 + 1) * np.arange(SHAPE.context + 1)) % SHAPE.vocabulary
    return Split(x=tokens[:, :-1], y=tokens[:, 1:])


def fit(engine: Engine, job: LocalJob) -> Metrics:
    time.sleep(float(job.config["pause"]))
    summary = train(
        engine,
        data(int(job.node["partition-id"])),
        batch_size=int(job.config["batch-size"]),
        steps=int(job.config["local-steps"]),
        seed=job.server_round,
        rule=job.rule,
    )
    return {"num-examples": summary.examples, "train_loss": summary.loss}


def check(engine: Engine, job: LocalJob) -> Metrics:
    result = evaluate(engine, data(int(job.node["partition-id"])))
    return {"num-examples": result.examples, "eval_loss": result.loss}


def stays(config: UserConfig) -> Personal:
    return Personal(patterns=tuple(str(config["personal"]).split()))


app = local_app(model=make_model, optimizer=make_optimizer, train=fit, evaluate=check, personal=stays)
