"""The Message API as in Flower's quickstarts: one model, FedAvg, every node trains and evaluates."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flower_apps.task import NODES, SIZES, arrays_of, initial, loss, partition_of, record_of, reply, report, trained

client = ClientApp()
server = ServerApp()
fraction = ServerApp()
"""A fraction of the nodes evaluates, as in Flower's template."""


@client.train()
def train(message: Message, context: Context) -> Message:
    arrays, metrics = trained(message, context)
    return reply(message, metrics, arrays)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    site = partition_of(context)
    value = loss(arrays_of(message.content["arrays"]), site)
    return reply(message, {"num-examples": SIZES[site], "eval_loss": value})


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(min_train_nodes=NODES, min_evaluate_nodes=NODES, min_available_nodes=NODES)
    rounds = int(context.run_config["num-server-rounds"])
    result = strategy.start(grid=grid, initial_arrays=record_of(initial()), num_rounds=rounds)
    report(arrays=result.arrays, trained=result.train_metrics_clientapp, evaluated=result.evaluate_metrics_clientapp)


@fraction.main()
def main_of_fraction(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_evaluate=0.5, min_train_nodes=NODES, min_available_nodes=NODES)
    rounds = int(context.run_config["num-server-rounds"])
    result = strategy.start(grid=grid, initial_arrays=record_of(initial()), num_rounds=rounds)
    # Which two nodes evaluate is drawn by chance.
    report(arrays=result.arrays, rounds=sorted(result.evaluate_metrics_clientapp))
