"""The ClientApp: a Trainer trains and tests the model that was sent.

Each rank of a client calls it (`fedcore client --nproc-per-node 2`). The Trainer finds the process group that the ranks
have, and divides every batch among them; rank 0's reply counts.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from transformers import EvalPrediction, PrinterCallback, Trainer

from trainer_app.task import arguments, local_data, make_model

app = ClientApp()


@contextlib.contextmanager
def trainer(message: Message, context: Context) -> Iterator[Trainer]:
    """A Trainer with the model of a message and this node's examples."""
    model = make_model(context.run_config)
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    train, test = local_data(context)
    current = int(message.content.config_records["config"].get("server-round", 0))
    seed = int(context.run_config["seed"]) + 1000 * current + int(context.node_config["partition-id"])
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        made = Trainer(
            model=model,
            args=arguments(context.run_config, folder=folder, seed=seed, ranks=ranks),
            train_dataset=train,
            eval_dataset=test,
            compute_metrics=share_of_right,
        )
        made.remove_callback(PrinterCallback)
        yield made


def share_of_right(prediction: EvalPrediction) -> dict[str, float]:
    scores: Any = prediction.predictions
    return {"acc": float((scores.argmax(-1) == prediction.label_ids).mean())}


@app.train()
def train(message: Message, context: Context) -> Message:
    with trainer(message, context) as own:
        loss = own.train().training_loss
        arrays = ArrayRecord({name: tensor.detach().cpu() for name, tensor in own.model.state_dict().items()})
        metrics = MetricRecord({"train_loss": loss, "num-examples": len(own.train_dataset)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    with trainer(message, context) as own, torch.no_grad():
        result = own.evaluate()
    metrics = MetricRecord(
        {
            "eval_loss": result["eval_loss"],
            "eval_acc": result["eval_acc"],
            "num-examples": len(own.eval_dataset),
        }
    )
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
