"""What the server and the clients share: the model, and how the data are divided."""

from functools import lru_cache

from flwr.app import UserConfig
from torch import nn

from fedcore.data import Split, client_data, load_fashion_mnist
from fedcore.training import OptimizerConfig, derive_seed, seeded
from fedcore.training.models import GreyImages, lenet, resnet18_groupnorm


def initial_model(config: UserConfig) -> nn.Module:
    """The model with the weights that every run with this seed starts from."""
    with seeded(derive_seed("initial weights", int(config["seed"]))):
        if config["model"] == "resnet18":
            return nn.Sequential(GreyImages(), resnet18_groupnorm(10, channels=1))
        return lenet()


@lru_cache(maxsize=128)
def local_data(partition: str, client: int, clients: int, seed: int) -> tuple[Split, Split]:
    """Training and test part of one client; kept, since a warm worker asks every round.

    Only the part is kept: the images of everyone else are freed again.
    """
    return client_data(load_fashion_mnist(), partition, client=client, clients=clients, seed=seed)


def optimizer(config: UserConfig) -> OptimizerConfig:
    return OptimizerConfig(
        lr=float(config["lr"]),
        momentum=float(config["momentum"]),
        weight_decay=float(config["weight-decay"]),
    )
