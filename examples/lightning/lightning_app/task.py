"""What the server and the clients share: the module with its optimizer and loss, and the data of a client."""

from typing import Any

import lightning
import torch
from flwr.app import Context, UserConfig
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Classifier(lightning.LightningModule):
    """Digits of 8 x 8 into ten classes."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x: Tensor) -> Any:
        return self.layers(x)

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        x, y = batch
        loss = functional.cross_entropy(self(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def test_step(self, batch: tuple[Tensor, Tensor], number: int) -> None:
        x, y = batch
        scores = self(x)
        self.log("eval_loss", functional.cross_entropy(scores, y))
        self.log("eval_acc", (scores.argmax(dim=1) == y).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def make_module(config: UserConfig) -> Classifier:
    """The module of a run, whose first weights the seed gives."""
    torch.manual_seed(int(config["seed"]))
    return Classifier(float(config["lr"]))


def local_data(
    context: Context, *, seed: int, rank: int = 0, ranks: int = 1
) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """The loaders of a node's training and test part; a rank reads its share of each training batch."""
    node, nodes = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    x, y = load_digits(return_X_y=True)
    features, labels = torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)
    train = TensorDataset(features[node:1400:nodes], labels[node:1400:nodes])
    test = TensorDataset(features[1400 + node :: nodes], labels[1400 + node :: nodes])
    size = int(context.run_config["batch-size"])
    order: DistributedSampler[Any] = DistributedSampler(train, num_replicas=ranks, rank=rank, seed=seed)
    return DataLoader(train, batch_size=size // ranks, sampler=order), DataLoader(test, batch_size=size)
