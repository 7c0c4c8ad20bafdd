"""Counts each client's labels, by calling the app's data function for every client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fedcore.data.types import Split
from fedcore.errors import AppError
from fedcore.flower.app import FlowerApp
from fedcore.flower.apps.engine_app import LocalApp
from fedcore.flower.apps.tensor_app import LocalJob
from fedcore.flower.loading import load_object
from fedcore.flower.node.config import share_of_client


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelCounts:
    """Training examples of each client by label, int64 [clients, labels].

    test: the same of the test parts.
    labels: the classes; empty if the targets are no classes, and the one column counts examples.
    """

    train: NDArray[np.int64]
    test: NDArray[np.int64]
    labels: tuple[int, ...]

    def to_plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"labels": list(self.labels), "train": self.train.tolist(), "test": self.test.tolist()}


def label_counts(app: FlowerApp, config: Mapping[str, Any], clients: int) -> LabelCounts:
    """Ask the app for the parts of every client; raises AppError for an app without a data function."""
    client = load_object(app.folder, app.clientapp, ClientApp)
    if not isinstance(client, LocalApp) or client.data is None:
        raise AppError(
            f"{app.name} does not say which data a client has: its ClientApp has to come from supervised_app, or from "
            "local_app(..., data=...)"
        )
    jobs = [
        LocalJob(config=dict(config), node=share_of_client(client, clients, app.node_keys), message={}, client=client)
        for client in range(1, clients + 1)
    ]
    statistics = client.columns.pooled(dict(config), client.data, jobs)
    parts = [client.data(LocalJob(config=j.config, node=j.node, message=statistics, client=j.client)) for j in jobs]
    every = [[_targets(half) for half in part] for part in parts]
    known = [[targets for targets in part if targets is not None] for part in every]
    if any(len(part) < 2 for part in known):
        sizes = np.array([[len(half) for half in part] for part in parts], np.int64)  # type: ignore[arg-type]
        return LabelCounts(train=sizes[:, :1], test=sizes[:, 1:], labels=())
    most = 1 + max(int(targets.max(initial=0)) for part in known for targets in part)
    train, test = (np.array([np.bincount(part[half], minlength=most) for part in known], np.int64) for half in (0, 1))
    return LabelCounts(train=train, test=test, labels=tuple(range(most)))


def _targets(half: object) -> NDArray[Any] | None:
    """The class of each example; None if the targets are none."""
    if isinstance(half, Split) and half.y.ndim == 1 and half.y.dtype.kind in "iu" and (half.y >= 0).all():
        return half.y
    return None
