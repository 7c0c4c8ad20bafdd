"""What the server and the clients share: the model, and how the data are divided."""

from functools import lru_cache

from flwr.app import UserConfig
from torch import nn

from fedcore.data import Dataset, Split, client_data, load_mnist
from fedcore.errors import UnknownKey
from fedcore.training import OptimizerConfig, derive_seed, seeded
from fedcore.training.models import lenet, mcmahan_2nn, mcmahan_cnn

MODELS = {"2nn": mcmahan_2nn, "cnn": mcmahan_cnn, "lenet": lenet}


def initial_model(config: UserConfig) -> nn.Module:
    """The model with the weights that every run with this seed starts from."""
    name = str(config["model"])
    if name not in MODELS:
        raise UnknownKey(name, MODELS, "model")
    with seeded(derive_seed("initial weights", int(config["seed"]))):
        return MODELS[name]()


@lru_cache(maxsize=1)
def whole() -> Dataset:
    """All images, read once in a simulation of many clients."""
    return load_mnist()


@lru_cache(maxsize=128)
def local_data(partition: str, client: int, clients: int, seed: int) -> tuple[Split, Split]:
    """Training and test part of one client; kept, since a warm worker asks every round."""
    return client_data(whole(), partition, client=client, clients=clients, seed=seed)


def optimizer(config: UserConfig) -> OptimizerConfig:
    return OptimizerConfig(
        lr=float(config["lr"]),
        momentum=float(config["momentum"]),
        weight_decay=float(config["weight-decay"]),
    )
