"""The ClientApp: Lightning's Trainer trains and tests the module that was sent."""

import logging
import tempfile
from typing import Any

import lightning
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from lightning_app.task import Classifier, local_data, make_module

app = ClientApp()
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)


def module_of(message: Message, context: Context) -> Classifier:
    """The module with the tensors of a message."""
    module = make_module(context.run_config)
    module.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    return module


def trainer(context: Context, folder: str) -> lightning.Trainer:
    """Of one local training, on one device, which logs and saves nothing by itself."""
    options: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return lightning.Trainer(
        max_epochs=int(context.run_config["local-epochs"]),
        accelerator="auto",
        devices=1,
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
    loader, _ = local_data(context, seed=seed_of(message, context))
    with tempfile.TemporaryDirectory() as folder:
        own = trainer(context, folder)
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
