"""The ClientApp: Lightning's Trainer trains and tests the module that was sent.

Each rank of a client calls it (`fedcore client --nproc-per-node 2`). Lightning trains in the process group that the
ranks have, each rank with its share of every batch; a test runs on each rank alone. Rank 0's reply counts.
"""

import logging
import os
import tempfile
from typing import Any

import lightning
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from lightning.pytorch.plugins.environments import TorchElasticEnvironment

from lightning_app.task import Classifier, local_data, make_module

app = ClientApp()
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)


def module_of(message: Message, context: Context) -> Classifier:
    """The module with the tensors of a message."""
    module = make_module(context.run_config)
    module.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    return module


def setting(name: str, alone: int) -> int:
    """Of the ranks, under the name that torchrun gives it.

    alone: what it is without ranks.
    """
    return int(os.environ.get(name, alone))


def trainer(context: Context, folder: str, *, ranks: int = 1) -> lightning.Trainer:
    """Of one local training or test, which logs and saves nothing by itself.

    ranks: that train together, each on a device of its own.
    """
    options: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    devices = 1
    if ranks > 1:
        devices = setting("LOCAL_WORLD_SIZE", 1)
        # The ranks run already: without this Lightning would start its own.
        options.update(strategy="ddp", num_nodes=ranks // devices, plugins=[TorchElasticEnvironment()])
    return lightning.Trainer(
        max_epochs=int(context.run_config["local-epochs"]),
        accelerator="auto",
        devices=devices,
        default_root_dir=folder,
        enable_model_summary=False,
        **options,
    )


def seed_of(message: Message, context: Context) -> int:
    current = int(message.content.config_records["config"].get("server-round", 0))
    return int(context.run_config["seed"]) + 1000 * current + int(context.node_config["partition-id"])


@app.train()
def train(message: Message, context: Context) -> Message:
    module = module_of(message, context)
    ranks = setting("WORLD_SIZE", 1)
    loader, _ = local_data(context, seed=seed_of(message, context), rank=setting("RANK", 0), ranks=ranks)
    with tempfile.TemporaryDirectory() as folder:
        own = trainer(context, folder, ranks=ranks)
        own.fit(module, loader)
    arrays = ArrayRecord({name: tensor.detach().cpu() for name, tensor in module.state_dict().items()})
    loss = float(own.callback_metrics["train_loss"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    _, loader = local_data(context, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        (result,) = trainer(context, folder).test(module_of(message, context), loader, verbose=False)
    metrics = MetricRecord({name: float(result[name]) for name in ("eval_loss", "eval_acc")})
    metrics["num-examples"] = len(loader.dataset)
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
