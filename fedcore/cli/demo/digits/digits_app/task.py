"""What the server and the clients share: the model, and how the data are divided."""

from functools import lru_cache

from flwr.app import UserConfig
from torch import nn

from fedcore.data import Split, client_data, load_digits
from fedcore.training import OptimizerConfig, derive_seed, seeded
from fedcore.training.models import digits_mlp


def initial_model(seed: int) -> nn.Module:
    """The model with the weights that every run with this seed starts from."""
    with seeded(derive_seed("initial weights", seed)):
        return digits_mlp()


@lru_cache(maxsize=128)
def local_data(partition: str, client: int, clients: int, seed: int) -> tuple[Split, Split]:
    """Training and test part of one client; kept, since a warm worker asks every round."""
    return client_data(load_digits(), partition, client=client, clients=clients, seed=seed)


def optimizer(config: UserConfig) -> OptimizerConfig:
    return OptimizerConfig(lr=float(config["lr"]), momentum=float(config["momentum"]))
