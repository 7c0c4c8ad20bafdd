"""FedAvgM whose learning rate halves every few rounds."""

from typing import Any, ClassVar

from flwr.serverapp.strategy import FedAvgM


class FedAvgDecay(FedAvgM):
    """FedAvgM whose learning rate halves every `half_life` rounds."""

    mean_only = True
    config_keys: ClassVar = {"server-lr": "server_learning_rate", "half-life": "half_life"}
    positive_keys = ("half-life",)

    def __init__(self, *, half_life: float = 10.0, **options: Any) -> None:
        super().__init__(**options)
        self.server_opt = True  # also with a rate of 1, which changes
        self._first_rate, self._half_life = self.server_learning_rate, half_life

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        self.server_learning_rate = self._first_rate * 0.5 ** ((server_round - 1) / self._half_life)
        return super().aggregate_train(server_round, replies)
