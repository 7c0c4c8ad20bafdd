"""What the server and the clients share: the model, the data of a client, and the Trainer's arguments."""

from typing import Any

import torch
from flwr.app import Context, UserConfig
from sklearn.datasets import load_digits
from torch.utils.data import Dataset
from transformers import TrainingArguments, ViTConfig, ViTForImageClassification


def make_model(config: UserConfig) -> ViTForImageClassification:
    """The model of a run, whose first weights the seed gives."""
    torch.manual_seed(int(config["seed"]))
    return ViTForImageClassification(
        ViTConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            image_size=8,
            patch_size=2,
            num_channels=1,
            num_labels=10,
            initializer_range=0.2,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            # The gradient of a key's bias is zero: AdamW would make steps of its rounding errors.
            qkv_bias=False,
        )
    )


class Digits(Dataset[dict[str, torch.Tensor]]):
    """Images of 8 x 8, as the model's `forward` takes them."""

    def __init__(self, rows: slice) -> None:
        x, y = load_digits(return_X_y=True)
        self.images = torch.tensor(x[rows], dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
        self.labels = torch.tensor(y[rows])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {"pixel_values": self.images[row], "labels": self.labels[row]}


def local_data(context: Context) -> tuple[Digits, Digits]:
    """Training and test part of a node: every fifth of its examples is for testing."""
    node, nodes = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    return Digits(slice(node, 1400, nodes)), Digits(slice(1400 + node, None, nodes))


def arguments(config: UserConfig, *, folder: str, seed: int, ranks: int = 1) -> TrainingArguments:
    """Of one local training, which reports and saves nothing by itself."""
    options: dict[str, Any] = {"report_to": "none", "save_strategy": "no", "logging_strategy": "no"}
    return TrainingArguments(
        output_dir=folder,
        num_train_epochs=float(config["local-epochs"]),
        per_device_train_batch_size=int(config["batch-size"]) // ranks,
        learning_rate=float(config["lr"]),
        seed=seed,
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
        **options,
    )
