"""The ClientApp: trains on the samples of one device, for fewer epochs if the server counts it among the late."""

import numpy as np

from fedcore import LocalJob, local_app
from fedcore.data import Split
from fedcore.training import derive_seed, evaluate, train
from fedcore.training.engines import Engine
from fedcore.training.metrics import accuracy
from synthetic_app.task import initial_model, local_data, optimizer


def data(job: LocalJob) -> tuple[Split, Split]:
    """Training and test part of this device."""
    return local_data(job.config, int(job.node["partition-id"]), int(job.node["num-partitions"]))


def fit(engine: Engine, job: LocalJob) -> dict[str, float]:
    """One round; a late device does as many of the epochs as it has time for."""
    config, device = job.config, int(job.node["partition-id"])
    seed = derive_seed("training order", int(config["seed"]), job.server_round, device)
    epochs = int(config["local-epochs"])
    if job.client in job.message["late-nodes"]:
        epochs = int(np.random.default_rng(seed).integers(1, max(2, epochs)))
    examples, _ = data(job)
    size = int(config["batch-size"])
    summary = train(engine, examples, batch_size=size, epochs=epochs, seed=seed, rule=job.rule)
    return {"num-examples": summary.examples, "train_loss": summary.loss}


def check(engine: Engine, job: LocalJob) -> dict[str, float]:
    _, examples = data(job)
    result = evaluate(engine, examples)
    return {"num-examples": result.examples, **result.reported(result.examples)}


app = local_app(model=initial_model, optimizer=optimizer, train=fit, evaluate=check, data=data, metrics=[accuracy])
