"""Each mod of Flower's, and one of the app's own: they run on the client, around what it does."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, arrays_size_mod, fixedclipping_mod, message_size_mod
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flower_apps.task import NODES, SIZES, arrays_of, initial, loss, partition_of, record_of, reply, report, trained

server = ServerApp()


def halving_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Halves every tensor of a reply."""
    answer = call_next(message, context)
    halved = {name: Array(array.numpy() / np.float32(2)) for name, array in answer.content["arrays"].items()}
    answer.content["arrays"] = ArrayRecord(halved)
    return answer


def make(*mods: ClientAppCallable, noisy: bool = False) -> ClientApp:
    """The client with these mods; noisy: they draw from NumPy's own generator."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if noisy:
            np.random.seed(partition_of(context))
        arrays, metrics = trained(message, context)
        return reply(message, metrics, arrays)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        site = partition_of(context)
        return reply(
            message, {"num-examples": SIZES[site], "eval_loss": loss(arrays_of(message.content["arrays"]), site)}
        )

    return app


fixed_clipping = make(fixedclipping_mod)
adaptive_clipping = make(adaptiveclipping_mod)
local_dp = make(LocalDpMod(clipping_norm=1.0, sensitivity=0.001, epsilon=10.0, delta=1e-5), noisy=True)
sizes = make(message_size_mod, arrays_size_mod)
own = make(halving_mod)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """The clipping mods take their norm from the configuration."""
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=NODES, min_available_nodes=NODES)
    result = strategy.start(
        grid=grid,
        initial_arrays=record_of(initial()),
        num_rounds=int(context.run_config["num-server-rounds"]),
        train_config=ConfigRecord({"clipping_norm": 0.5}),
    )
    report(arrays=result.arrays, trained=result.train_metrics_clientapp, examples=sum(SIZES))
