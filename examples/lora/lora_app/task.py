"""What the server and the clients share: the model with its adapter, and how the text is divided."""

from functools import lru_cache

from flwr.app import UserConfig

from fedcore.data import Dataset, Split, client_data, load_shakespeare
from fedcore.training import OptimizerConfig, derive_seed, seeded
from fedcore.training.huggingface import CausalLM, load_pretrained, load_tokenizer, tiny_llama, with_lora

BYTES = 256


def initial_model(config: UserConfig) -> CausalLM:
    """The model of a run with the adapter that every such run starts from."""
    base = str(config["base-model"])
    with seeded(derive_seed("initial weights", int(config["seed"]))):
        model = load_pretrained(base) if base else tiny_llama(BYTES)
        return with_lora(model, rank=int(config["rank"]), alpha=float(config["alpha"]))


def local_data(config: UserConfig, client: int, clients: int) -> tuple[Split, Split]:
    """Training and test part of one client."""
    return _part(
        str(config["base-model"]), int(config["window"]), str(config["partition"]), client, clients, int(config["seed"])
    )


def optimizer(config: UserConfig) -> OptimizerConfig:
    return OptimizerConfig(name="adam", lr=float(config["lr"]))


@lru_cache(maxsize=1)
def _text(base: str, window: int) -> Dataset:
    if not base:
        return load_shakespeare(window=window, encode=str.encode, vocabulary=BYTES)
    tokenizer = load_tokenizer(base)

    def encode(text: str) -> list[int]:
        tokens: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return tokens

    return load_shakespeare(window=window, encode=encode, vocabulary=len(tokenizer))


@lru_cache(maxsize=2048)
def _part(base: str, window: int, partition: str, client: int, clients: int, seed: int) -> tuple[Split, Split]:
    """Kept, since a warm worker asks every round."""
    return client_data(_text(base, window), partition, client=client, clients=clients, seed=seed)
