"""Strategies and aggregations of an app's own, that need single replies or say that they do not.

The clients are those of `quickstart`.
"""

import numpy as np
from flwr.app import Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, FedMedian, Strategy

from fedcore import mean_only
from flower_apps.task import NODES, arrays_of, initial, record_of, report

server = ServerApp()

EVERYBODY = {"min_train_nodes": NODES, "min_evaluate_nodes": NODES, "min_available_nodes": NODES}


class Robust(FedAvg):
    """Leaves out the update that is furthest from the middle, and weighs the others alike."""

    def aggregate_train(self, server_round: int, replies):  # type: ignore[no-untyped-def]
        models = [arrays_of(reply.content["arrays"]) for reply in replies]
        flat = np.stack([np.concatenate([value.ravel() for value in model.values()]) for model in models])
        order = np.argsort(np.linalg.norm(flat - np.median(flat, axis=0), axis=1))
        kept = [models[i] for i in order[: max(1, len(models) - 1)]]
        return record_of({name: np.mean([model[name] for model in kept], axis=0) for name in models[0]}), MetricRecord()


class OwnStart(FedMedian):
    """A median whose loop is written anew."""

    def start(self, grid, initial_arrays, num_rounds=3, **options):  # type: ignore[no-untyped-def]
        from flwr.app import ConfigRecord
        from flwr.serverapp.strategy import Result

        result, arrays = Result(), initial_arrays
        for current in range(1, num_rounds + 1):
            replies = grid.send_and_receive(self.configure_train(current, arrays, ConfigRecord(), grid))
            arrays, _ = self.aggregate_train(current, replies)
            result.arrays = arrays
        return result


class Logged(FedAvg):
    """Counts rounds, and leaves the mean as it is: in secure mode it is refused as it stands."""

    rounds = 0

    def aggregate_train(self, server_round: int, replies):  # type: ignore[no-untyped-def]
        self.rounds += 1
        return super().aggregate_train(server_round, replies)


class DeclaredLogged(Logged):
    """The same, declared."""

    mean_only = True


def weighted_loss(contents: list[RecordDict], weight_key: str) -> MetricRecord:
    """A weighted mean, written by hand."""
    records = [content["metrics"] for content in contents]
    weights = [record[weight_key] for record in records]
    losses = [w * record["eval_loss"] for w, record in zip(weights, records, strict=True)]
    return MetricRecord({"loss": sum(losses) / sum(weights)})


@mean_only
def declared_loss(contents: list[RecordDict], weight_key: str) -> MetricRecord:
    """The same, declared."""
    return weighted_loss(contents, weight_key)


def make(name: str) -> Strategy:
    """The strategy that the run config names."""
    if name == "weighted-loss":
        return FedAvg(evaluate_metrics_aggr_fn=weighted_loss, **EVERYBODY)
    if name == "declared-loss":
        return FedAvg(evaluate_metrics_aggr_fn=declared_loss, **EVERYBODY)
    kinds = {kind.__name__: kind for kind in (Robust, OwnStart, Logged, DeclaredLogged)}
    return kinds[name](**EVERYBODY)


@server.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    result = make(str(config["strategy"])).start(
        grid=grid, initial_arrays=record_of(initial()), num_rounds=int(config["num-server-rounds"])
    )
    report(arrays=result.arrays, evaluated=result.evaluate_metrics_clientapp)
