"""A learning rate that the strategy changes from round to round, as Flower's documentation teaches it.

The key is one of the run config as well, as in Flower's template.
"""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdagrad, FedAvg

from flower_apps.task import NODES, SIZES, arrays_of, fit, initial, loss, partition_of, record_of, reply, report

client = ClientApp()
server = ServerApp()
EVERYBODY = {"min_train_nodes": NODES, "min_evaluate_nodes": NODES, "min_available_nodes": NODES}


@client.train()
def train(message: Message, context: Context) -> Message:
    site, lr = partition_of(context), float(message.content["config"]["lr"])  # type: ignore[arg-type]
    arrays, before = fit(arrays_of(message.content["arrays"]), site, lr)
    return reply(message, {"num-examples": SIZES[site], "train_loss": before, "lr": lr}, arrays)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    site = partition_of(context)
    value = loss(arrays_of(message.content["arrays"]), site)
    return reply(message, {"num-examples": SIZES[site], "eval_loss": value})


class Halving:
    """Halves the learning rate before each round but the first."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if server_round > 1:
            config["lr"] *= 0.5  # type: ignore[operator]
        return super().configure_train(server_round, arrays, config, grid)  # type: ignore[misc]


class HalvingAvg(Halving, FedAvg):
    """FedAvg with it."""


class HalvingAdagrad(Halving, FedAdagrad):
    """What Flower's page on custom strategies shows."""


@server.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    kinds = {kind.__name__: kind for kind in (HalvingAvg, HalvingAdagrad)}
    result = kinds[str(config["strategy"])](**EVERYBODY).start(
        grid=grid,
        initial_arrays=record_of(initial()),
        train_config=ConfigRecord({"lr": config["lr"]}),
        num_rounds=4,
    )
    report(arrays=result.arrays, trained=result.train_metrics_clientapp, evaluated=result.evaluate_metrics_clientapp)
