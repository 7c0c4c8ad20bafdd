"""The ClientApp: trains and evaluates the adapter on the lines of this node's roles."""

from typing import cast

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedcore.data import Split
from fedcore.training import derive_seed, evaluate, train
from fedcore.training.adapters import adapter_state, load_adapter_state
from fedcore.training.huggingface import CausalLM
from lora_app.task import initial_model, local_data, optimizer

app = ClientApp()


@app.train()
def train_round(message: Message, context: Context) -> Message:
    """Train the adapter for one round and reply with its new weights."""
    config = context.run_config
    model, (examples, _) = _received(message, context), _data(context)
    summary = train(
        model,
        examples,
        optimizer=optimizer(config),
        batch_size=int(config["batch-size"]),
        epochs=int(config["local-epochs"]),
        seed=_round_seed(message, context),
    )
    metrics = MetricRecord({"num-examples": summary.examples, "train_loss": summary.loss})
    content = RecordDict({"arrays": ArrayRecord(adapter_state(model)), "metrics": metrics})
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate_round(message: Message, context: Context) -> Message:
    """Test the model with the global adapter on this node's test part."""
    model, (_, examples) = _received(message, context), _data(context)
    result = evaluate(model, examples)
    # Loss and accuracy are means over tokens, and so is their average over the nodes.
    metrics = MetricRecord(
        {
            "num-examples": result.targets,
            "eval_loss": result.loss,
            "eval_acc": result.accuracy,
        }
    )
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)


def _received(message: Message, context: Context) -> CausalLM:
    """The model with the adapter that came with the message."""
    model = initial_model(context.run_config)
    load_adapter_state(model, message.content.array_records["arrays"].to_torch_state_dict())
    return model


def _data(context: Context) -> tuple[Split, Split]:
    node = context.node_config
    return local_data(context.run_config, int(node["partition-id"]), int(node["num-partitions"]))


def _round_seed(message: Message, context: Context) -> int:
    """The order of the examples: the same whenever, wherever and after whatever it runs."""
    server_round = cast(int, message.content.config_records["config"]["server-round"])
    seed, node = context.run_config["seed"], context.node_config["partition-id"]
    return derive_seed("training order", int(seed), server_round, int(node))
