"""Images: batch and group normalisation, segmentation, detection, accumulation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from fedcore import supervised_app
from tests.integration.programs.program import Program, choices, drawn, loop
from tests.integration.programs.tables import SGD, both, made
from tests.support.several_tensors import Listed

PICTURES, KINDS = drawn(61, 11, 2, 8, 8), choices(62, 3, 11)
ROWS = Listed(list(zip(PICTURES, KINDS, strict=True)))


def network(norm: Any) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), norm(4), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2), norm(4), nn.ReLU(), nn.Flatten(),
        nn.Linear(16, 3),
    )  # fmt: skip


def normalised(name: str, norm: Any, size: int = 4, **config: Any) -> Program:
    data, model = DataLoader(ROWS, batch_size=size), made(lambda: network(norm))

    def bare() -> nn.Module:
        own = model()
        return loop(own, data, lambda m, b: F.cross_entropy(m(b[0]), b[1]), torch.optim.SGD(own.parameters(), lr=0.1))

    app = lambda: supervised_app(model=model, optimizer=SGD, data=both(data))  # noqa: E731
    return Program(name=name, app=app, bare=bare, config=config, bound=2e-5 if config else 1e-5)


def batch_norm() -> Program:
    return normalised("batch norm, synchronised", nn.BatchNorm2d, **{"sync-batch-norm": True})


def batch_norm_of_one() -> Program:
    """The last batch has one example: the other rank has none, and nothing of its own in the statistics."""
    return normalised("batch norm, a rank with none", nn.BatchNorm2d, 5, **{"sync-batch-norm": True})


def group_norm() -> Program:
    return normalised("group norm", lambda channels: nn.GroupNorm(2, channels))


class UNet(nn.Module):
    """One level down and up again, with the way across."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(4, 4, 2, stride=2), nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        across = torch.relu(self.down(x))
        back = self.up(torch.relu(self.deep(F.max_pool2d(across, 2))))
        return self.out(torch.cat([across, back], dim=1))


def segmentation() -> Program:
    """A class of each pixel, and the overlap of each image (Dice)."""

    def loss(output: Tensor, masks: Tensor) -> Tensor:
        pixels = F.cross_entropy(output, masks, reduction="none").mean((1, 2))
        chances, truth = output.softmax(1), F.one_hot(masks, 3).movedim(-1, 1)
        overlap = 2 * (chances * truth).sum((2, 3)) / (chances + truth).sum((2, 3))
        return pixels + 1 - overlap.mean(1)

    data = DataLoader(Listed(list(zip(PICTURES, choices(63, 3, 11, 8, 8), strict=True))), batch_size=4)
    model = made(UNet)

    def bare() -> nn.Module:
        own = model()
        return loop(own, data, lambda m, b: loss(m(b[0]), b[1]).mean(), torch.optim.SGD(own.parameters(), lr=0.1))

    app = lambda: supervised_app(model=model, optimizer=SGD, data=both(data), loss=loss)  # noqa: E731
    return Program(name="segmentation, U-Net", app=app, bare=bare)


class Detector(nn.Module):
    """Of a list of images of different sizes and a list of dicts a dict of losses, as in torchvision."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.box, self.kind = nn.Conv2d(2, 4, 3), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, images: list[Tensor], targets: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        features = torch.stack([torch.relu(self.trunk(image)).mean((1, 2)) for image in images])
        boxes, kinds = self.box(features), self.kind(features)
        each = [(box - one["boxes"]).abs().mean() for box, one in zip(boxes, targets, strict=True)]
        names = [
            F.cross_entropy(k.expand(len(one["labels"]), -1), one["labels"])
            for k, one in zip(kinds, targets, strict=True)
        ]
        return {"loss_box": torch.stack(each), "loss_class": torch.stack(names)}


def detection() -> Program:
    """Lists, whose items have shapes of their own."""

    def loss(model: Any, batch: Any) -> Tensor:
        images, targets = batch
        return sum(model(images, targets).values())  # type: ignore[return-value]

    def collate(rows: Any) -> Any:
        return tuple(zip(*rows, strict=True))

    rows = [
        (drawn(70 + n, 2, 6 + n % 3, 7), {"boxes": drawn(90 + n, 1 + n % 2, 4), "labels": choices(n, 3, 1 + n % 2)})
        for n in range(9)
    ]
    data, model = DataLoader(Listed(rows), batch_size=4, collate_fn=collate), made(Detector)

    def bare() -> nn.Module:
        own = model()
        return loop(own, data, lambda m, b: loss(m, b).mean(), torch.optim.SGD(own.parameters(), lr=0.1))

    app = lambda: supervised_app(model=model, optimizer=SGD, data=both(data), loss=loss)  # noqa: E731
    return Program(name="detection, lists of dicts", app=app, bare=bare)


def mirrored(rows: Any) -> Any:
    return torch.stack([x for x, _ in rows]).flip(-1), torch.stack([y for _, y in rows])


def collated() -> Program:
    """A dataset with a way to make batches of its own."""
    data, model = Listed(ROWS.examples, mirrored), made(lambda: nn.Sequential(nn.Flatten(), nn.Linear(128, 3)))

    def bare() -> nn.Module:
        own = model()
        batches = DataLoader(data, batch_size=11, collate_fn=mirrored)
        each = lambda m, b: F.cross_entropy(m(b[0]), b[1])  # noqa: E731
        return loop(own, batches, each, torch.optim.SGD(own.parameters(), lr=0.1))

    app = lambda: supervised_app(model=model, optimizer=SGD, data=both(data))  # noqa: E731
    return Program(name="collate_fn of the dataset", app=app, bare=bare)


PROGRAMS = (batch_norm, batch_norm_of_one, group_norm, segmentation, detection, collated)
