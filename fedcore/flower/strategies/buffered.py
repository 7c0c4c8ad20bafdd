"""The strategy of buffered asynchrony: FedBuff (Nguyen et al. 2022, arXiv 2106.06639, algorithm 1)."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvgM

from fedcore.errors import ConfigurationError
from fedcore.flower.grid.grid import ExchangeGrid


class FedBuff(FedAvgM):
    """x + eta_g * mean of a buffer's updates, each scaled by its staleness; with momentum, if that is wanted.

    What a training of a buffered run replies is its newest model plus that mean, so one step of FedAvgM is the server's
    step of FedBuff. Other strategies that use the mean alone may take its place.

    server_learning_rate: eta_g. server_momentum: 0 for none.
    """

    mean_only = True

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As FedAvgM; raises ConfigurationError in a run whose rounds wait for all of their clients."""
        if isinstance(grid, ExchangeGrid) and not grid.buffered:
            raise ConfigurationError(
                'strategy fedbuff is for runs with asynchrony = "buffered" (--set asynchrony=buffered); in others it '
                "would be fedavgm",
                check="only-buffered",
            )
        return super().configure_train(server_round, arrays, config, grid)
