"""Boosted trees whose sums have noise: AUC on new rows against the epsilon of each row; part of tree_histograms.py."""

from __future__ import annotations

import os
from collections.abc import Iterable
from statistics import fmean
from typing import Any, Final

import numpy as np
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity
from sklearn.metrics import roc_auc_score

from benchmarks.trees_tables import DividedTable
from fedcore.codec.privacy.query_noise import QueryNoise
from fedcore.data import Split
from fedcore.flower.records import state_from_arrays
from fedcore.flower.trees.budget import VALUES
from fedcore.flower.trees.client import SUMS, TreesApp
from fedcore.flower.trees.one_place import OnePlace
from fedcore.flower.trees.server import grow
from fedcore.trees import Ensemble

EPSILONS: Final = (1.0, 2.0, 4.0, 8.0)
SHALLOW: Final = {
    "num-server-rounds": 10, "max-depth": 2, "bins": 8, "min-child-weight": 10.0, "colsample-bytree": 0.3,
    "test-every": 0, "min-nodes": 1, "delta": 1e-6,
}  # fmt: skip


class NoisedPlace(OnePlace):
    """All rows in one place, and the noise of the smallest sum: as if all sites were honest and none added more."""

    @staticmethod
    def noise_shares(clients: int) -> int:
        """All of the noise is in one share."""
        del clients
        return 1

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """The replies with the noise that the messages state."""
        asked = list(messages)
        replies = list(super().send_and_receive(asked, timeout=timeout))
        for message, reply in zip(asked, replies, strict=True):
            noise = QueryNoise.stated({key: dict(one) for key, one in message.content.config_records.items()})
            if noise is not None:
                record: Any = reply.content.metric_records[SUMS]
                record["sums"] = noise.added_to({VALUES: list(record["sums"])}, os.urandom)[VALUES]
        return replies


def auc_with_noise(table: DividedTable, epsilon: float, draws: int) -> float:
    """On new rows, the mean over so many draws of the noise; an epsilon of 0 is without noise."""
    return fmean(_auc(table, {**SHALLOW, "epsilon": epsilon, "seed": draw}) for draw in range(draws if epsilon else 3))


def _auc(table: DividedTable, config: dict[str, Any]) -> float:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 0
    rows = Split(x=table.x, y=table.y.astype(np.int64))
    app = TreesApp(data=lambda job: (rows, rows), names=None, bounds=lambda config: table.bounds)
    state = state_from_arrays(grow(NoisedPlace(app, config), config, app))
    model = Ensemble.from_arrays({name: state[name] for name in state})
    return float(roc_auc_score(table.new_y, model.margins(table.new_x)))
