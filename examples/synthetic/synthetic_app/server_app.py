"""The ServerApp: FedAvg or FedProx, and who is late in a round."""

from collections.abc import Collection, Iterable

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, UserConfig
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedProx

from fedcore import averaging_server
from fedcore.training import derive_seed
from synthetic_app.client_app import app as client
from synthetic_app.task import whole


class Stragglers(FedProx):
    """FedProx (FedAvg with mu = 0) in which a fraction `late` of the devices of every round has not much time.

    With `drop_late` these take no part.
    """

    def __init__(self, late: float, drop_late: bool, seed: int, **options: float) -> None:
        super().__init__(**options)
        self.late, self.drop_late, self.seed = late, drop_late, seed

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """All messages hold the one `config`, in which each device finds whether it is late."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        nodes = sorted(message.metadata.dst_node_id for message in messages)
        draw = np.random.default_rng(derive_seed("late", self.seed, server_round))
        late = draw.choice(nodes, round(self.late * len(nodes)), replace=False).tolist()
        if self.drop_late:
            messages, late = [message for message in messages if message.metadata.dst_node_id not in late], []
        config["late-nodes"] = late
        return messages


def strategy(config: UserConfig, *, trained: Collection[str], **options: float) -> Stragglers:
    """Called as fedcore's own `make_strategy`; which tensors are trained does not matter here."""
    del trained
    return Stragglers(
        late=float(config["late"]),
        drop_late=bool(config["drop-late"]),
        seed=int(config["seed"]),
        proximal_mu=float(config["proximal-mu"]),
        **options,
    )


app = averaging_server(client, test=lambda config: whole(config).test, strategy=strategy)
