"""XGBoost as Flower's quickstart has it: a booster's JSON as bytes in a U8 array. The trees are made up."""

import json

import numpy as np
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedXgbBagging, FedXgbCyclic

from flower_apps.task import NODES, SIZES, partition_of, reply, report

client = ClientApp()
bagging = ServerApp()
cyclic = ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Adds one tree; bagging sends that alone, cyclic the whole booster."""
    site = partition_of(context)
    received = message.content["arrays"]["0"].numpy().tobytes()
    config = message.content["config"]
    trees = trees_of(received) if received and config["whole"] else []
    trees.append({"id": len(trees), "leaf": round(1 / SIZES[site], 6)})
    array = np.frombuffer(booster(trees), dtype=np.uint8)
    return reply(message, {"num-examples": SIZES[site]}, {"0": array})


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    trees = trees_of(message.content["arrays"]["0"].numpy().tobytes())
    return reply(message, {"num-examples": SIZES[partition_of(context)], "trees": float(len(trees))})


@bagging.main()
def main(grid: Grid, context: Context) -> None:
    run(grid, FedXgbBagging(min_train_nodes=NODES, min_evaluate_nodes=NODES, min_available_nodes=NODES), 2)


@cyclic.main()
def main_of_cyclic(grid: Grid, context: Context) -> None:
    run(grid, FedXgbCyclic(min_available_nodes=NODES, fraction_train=1.0, fraction_evaluate=1.0), NODES)


def run(grid: Grid, strategy: FedXgbBagging | FedXgbCyclic, rounds: int) -> None:
    """From an empty booster; the order of the nodes is Flower's to choose, the trees are not."""
    from flwr.app import ConfigRecord

    config = ConfigRecord({"whole": isinstance(strategy, FedXgbCyclic)})
    start = ArrayRecord([np.frombuffer(b"", dtype=np.uint8)])
    result = strategy.start(grid=grid, initial_arrays=start, num_rounds=rounds, train_config=config)
    trees = trees_of(result.arrays["0"].numpy().tobytes())
    report(leaves=sorted(tree["leaf"] for tree in trees), evaluated=result.evaluate_metrics_clientapp)


def booster(trees: list[dict[str, float]]) -> bytes:
    """The parts of XGBoost's JSON that Flower reads."""
    parameters = {"num_trees": str(len(trees)), "num_parallel_tree": "1"}
    model = {
        "gbtree_model_param": parameters,
        "iteration_indptr": list(range(len(trees) + 1)),
        "trees": trees,
        "tree_info": [0] * len(trees),
    }
    return json.dumps({"learner": {"gradient_booster": {"model": model}}}).encode()


def trees_of(raw: bytes) -> list[dict[str, float]]:
    """The trees of a booster."""
    found: list[dict[str, float]] = json.loads(raw)["learner"]["gradient_booster"]["model"]["trees"]
    return found
