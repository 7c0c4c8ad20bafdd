"""A strategy for this process, without a package."""

from typing import Any

from flwr.serverapp.strategy import FedAvgM

import fedcore


@fedcore.register("strategy", "fedavg-warm")
class FedAvgWarm(FedAvgM):
    """FedAvgM that averages alone in its first five rounds."""

    mean_only = True

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        self.server_opt = server_round > 5
        return super().aggregate_train(server_round, replies)
