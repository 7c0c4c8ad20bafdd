"""The ClientApp: a Trainer trains and tests the model that was sent.

Each rank of a client calls it (`fedcore client --nproc-per-node 2`). The Trainer finds the process group that the ranks
have, and divides every batch among them; rank 0's reply counts. It fills the last batch of an epoch up to the size of
the others with examples of the first, so that several ranks train a little more than one.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy
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
            compute_metrics=figures,
        )
        made.remove_callback(PrinterCallback)
        yield made


def figures(prediction: EvalPrediction) -> dict[str, float]:
    """Of each test example once: the Trainer's own `eval_loss` counts what fills up the ranks' last batch, too."""
    scores, labels = torch.tensor(prediction.predictions), torch.tensor(prediction.label_ids)
    right = (scores.argmax(dim=-1) == labels).double().mean()
    return {"mean_loss": float(cross_entropy(scores, labels)), "acc": float(right)}


@app.train()
def train(message: Message, context: Context) -> Message:
    with trainer(message, context) as own:
        loss = torch.tensor(own.train().training_loss, dtype=torch.float64, device=own.args.device)
        loss = own.accelerator.reduce(loss, reduction="mean").item()  # the Trainer's is that of one rank
        arrays = ArrayRecord({name: tensor.detach().cpu() for name, tensor in own.model.state_dict().items()})
        metrics = MetricRecord({"train_loss": loss, "num-examples": len(own.train_dataset)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    with trainer(message, context) as own, torch.no_grad():
        result = own.evaluate()
    metrics = MetricRecord(
        {
            "eval_loss": result["eval_mean_loss"],
            "eval_acc": result["eval_acc"],
            "num-examples": len(own.eval_dataset),
        }
    )
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
