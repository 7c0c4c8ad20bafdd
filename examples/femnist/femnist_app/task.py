"""What the server and the clients share: the model, and how the data are divided."""

from functools import lru_cache

from flwr.app import UserConfig
from torch import nn

from fedcore.data import Split, client_data, load_femnist
from fedcore.flower.apps.personalization import Personal
from fedcore.training import OptimizerConfig, derive_seed, seeded
from fedcore.training.models import small_cnn

CLASSES = 62


def initial_model(seed: int) -> nn.Module:
    """The model with the weights that every run with this seed starts from."""
    with seeded(derive_seed("initial weights", seed)):
        return small_cnn(CLASSES)


@lru_cache(maxsize=128)
def local_data(partition: str, client: int, clients: int, seed: int) -> tuple[Split, Split]:
    """Training and test part of one client; kept, since a warm worker asks every round.

    Only the part is kept: the images of everyone else are freed again.
    """
    return client_data(load_femnist(), partition, client=client, clients=clients, seed=seed)


def personal(config: UserConfig) -> Personal:
    """What stays with the writer: nothing, a list of patterns such as "output.*", or a model of the writer's own."""
    return Personal(
        patterns=tuple(str(config["personal"]).split()),
        keep_model=bool(config["keep-model"]),
        ditto=float(config["ditto"]),
    )


def optimizer(config: UserConfig) -> OptimizerConfig:
    return OptimizerConfig(
        lr=float(config["lr"]),
        momentum=float(config["momentum"]),
        weight_decay=float(config["weight-decay"]),
    )
