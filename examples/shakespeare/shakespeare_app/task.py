"""What the server and the clients share: the model, and how the text is divided."""

from functools import lru_cache

from flwr.app import UserConfig
from torch import nn

from fedcore.data import Split, client_data, load_shakespeare
from fedcore.training import OptimizerConfig, derive_seed, seeded
from fedcore.training.models import GPT, GPTConfig, char_lstm

# Padding, and the 74 different characters of the plays; the server knows it without the text.
VOCABULARY = 75
WINDOW = 80

# Read once in a simulation of many roles, from which every round draws others.
whole = lru_cache(maxsize=1)(load_shakespeare)


def initial_model(config: UserConfig) -> nn.Module:
    """The model with the weights that every run with this seed starts from."""
    with seeded(derive_seed("initial weights", int(config["seed"]))):
        if config["model"] == "lstm":
            return char_lstm(VOCABULARY)
        return GPT(GPTConfig.of_size(str(config["model"]).removeprefix("gpt-"), vocabulary=VOCABULARY, context=WINDOW))


@lru_cache(maxsize=2048)
def local_data(partition: str, client: int, clients: int, seed: int) -> tuple[Split, Split]:
    """Training and test part of one client; kept, since a warm worker asks every round."""
    return client_data(whole(), partition, client=client, clients=clients, seed=seed)


def optimizer(config: UserConfig) -> OptimizerConfig:
    return OptimizerConfig(
        name=str(config["optimizer"]),
        lr=float(config["lr"]),
        momentum=float(config["momentum"]),
        weight_decay=float(config["weight-decay"]),
    )
