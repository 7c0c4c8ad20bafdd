"""The ServerApp: an average, or one of Flower's robust strategies, over updates or over the means of groups."""

from collections.abc import Collection
from typing import Any

from flwr.app import UserConfig
from flwr.serverapp.strategy import Bulyan, FedAvg, FedMedian, FedTrimmedAvg, Krum, MultiKrum

from fedcore import averaging_server

from .client_app import app as client
from .task import whole


def strategy(config: UserConfig, *, trained: Collection[str], **options: Any) -> FedAvg:
    """bad: how many poisoned replies Krum and its kind reckon with."""
    del trained
    bad = int(config["bad"])
    match str(config["strategy"]):
        case "fedavg":
            return FedAvg(**options)
        case "median":
            return FedMedian(**options)
        case "trimmed":
            return FedTrimmedAvg(beta=float(config["beta"]), **options)
        case "krum":
            return Krum(num_malicious_nodes=bad, **options)
        case "multikrum":
            return MultiKrum(num_malicious_nodes=bad, num_nodes_to_select=int(config["selected"]), **options)
        case "bulyan":
            return Bulyan(num_malicious_nodes=bad, **options)
    raise ValueError(f"no strategy {config['strategy']!r}")


app = averaging_server(client, test=lambda config: whole().test, strategy=strategy)
