"""The API before messages: client_fn, server_fn and NumPyClient, and the SecAgg+ workflow with its mod."""

import numpy as np
from flwr.client import Client, ClientApp, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.common import Context, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import Grid, LegacyContext, ServerApp, ServerAppComponents, ServerConfig
from flwr.server import strategy as flower
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

from fedcore import mean_only
from flower_apps.task import NODES, SIZES, fit, initial, loss, partition_of, report

NAMES = tuple(initial())


class LinearClient(NumPyClient):
    """One site, with a list of arrays."""

    def __init__(self, site: int, lr: float) -> None:
        self.site, self.lr = site, lr

    def fit(self, parameters, config):  # type: ignore[no-untyped-def]
        arrays, before = fit(dict(zip(NAMES, parameters, strict=True)), self.site, self.lr)
        return list(arrays.values()), SIZES[self.site], {"train_loss": before}

    def evaluate(self, parameters, config):  # type: ignore[no-untyped-def]
        value = loss(dict(zip(NAMES, parameters, strict=True)), self.site)
        return value, SIZES[self.site], {"error": value**0.5}


def client_fn(context: Context) -> Client:
    return LinearClient(partition_of(context), float(context.run_config["lr"])).to_client()


client = ClientApp(client_fn=client_fn)
secagg_client = ClientApp(client_fn=client_fn, mods=[secaggplus_mod])


def weighted_average(metrics):  # type: ignore[no-untyped-def]
    """As Flower's template has it."""
    return {"error": sum(n * m["error"] for n, m in metrics) / sum(n for n, _ in metrics)}


@mean_only
def declared_average(metrics):  # type: ignore[no-untyped-def]
    """The same, declared."""
    return weighted_average(metrics)


def evaluate_fn(server_round: int, arrays, config):  # type: ignore[no-untyped-def]
    """The last line counts."""
    report(arrays=dict(zip(NAMES, [np.asarray(array) for array in arrays], strict=True)), rounds=server_round)
    return 0.0, {}


OPTIONS = {
    "FedProx": {"proximal_mu": 0.25},
    "FedAvgM": {"server_learning_rate": 0.75, "server_momentum": 0.5},
    "Krum": {"num_malicious_clients": 0},
    "Bulyan": {"num_malicious_clients": 0},
}


def make(name: str) -> flower.FedAvg:
    """The strategy that the run config names; of FedAvg with metrics, too."""
    options = {
        "initial_parameters": ndarrays_to_parameters(list(initial().values())),
        "min_fit_clients": NODES,
        "min_evaluate_clients": NODES,
        "min_available_clients": NODES,
        "evaluate_fn": evaluate_fn,
    }
    averages = {"weighted-average": weighted_average, "declared-average": declared_average}
    if name in averages:
        return flower.FedAvg(evaluate_metrics_aggregation_fn=averages[name], **options)
    return getattr(flower, name)(**options, **OPTIONS.get(name, {}))


def server_fn(context: Context) -> ServerAppComponents:
    config = ServerConfig(num_rounds=int(context.run_config["num-server-rounds"]))
    return ServerAppComponents(strategy=make(str(context.run_config["strategy"])), config=config)


server = ServerApp(server_fn=server_fn)
secagg_server = ServerApp()


@secagg_server.main()
def main(grid: Grid, context: Context) -> None:
    """Masks of Flower's own; quantised, so the mean is near the plain one."""
    legacy = LegacyContext(
        context=context,
        config=ServerConfig(num_rounds=1),
        strategy=flower.FedAvg(
            initial_parameters=ndarrays_to_parameters(list(initial().values())),
            min_fit_clients=NODES,
            min_available_clients=NODES,
            fraction_evaluate=0.0,
        ),
    )
    workflow = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, max_weight=64.0, timeout=60.0)
    DefaultWorkflow(fit_workflow=workflow)(grid, legacy)
    from flwr.compat.common import recorddict_compat
    from flwr.server.workflow.constant import MAIN_PARAMS_RECORD

    parameters = recorddict_compat.arrayrecord_to_parameters(legacy.state.array_records[MAIN_PARAMS_RECORD], True)
    report(arrays=dict(zip(NAMES, parameters_to_ndarrays(parameters), strict=True)))
