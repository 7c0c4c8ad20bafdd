"""The clients of a run of boosted trees, all of which have to be in every sum."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedcore.data.statistics import Bounds, Statistics
from fedcore.errors import AppError
from fedcore.flower.apps.statistics import federated_statistics
from fedcore.flower.trees.client import COUNTS, SUMS
from fedcore.trees.limits import FINE_BINS

_ATTEMPTS: Final = 4
_WAIT: Final = 2.0


@dataclass(eq=False)
class Sites:
    """The clients of a run, all of which have to be in every sum."""

    sum_only = True

    grid: Grid
    nodes: Sequence[int]
    wait: Callable[[float], None] = time.sleep
    _rows: dict[str, float] = field(default_factory=dict, init=False)

    @property
    def noise_shares(self) -> int:
        """How many of their noise shares any sum is sure to hold; 0 if sums are not masked."""
        shares: Callable[[int], int] = getattr(self.grid, "noise_shares", lambda n: 0)
        return shares(len(self.nodes))

    def statistics(self, bounds: Bounds) -> Statistics:
        """Of the columns of all clients; raises AppError if some never answer."""
        for attempt in range(_ATTEMPTS):
            if attempt:
                self.wait(_WAIT**attempt)
            statistics = federated_statistics(self.grid, bounds, bins=FINE_BINS, min_nodes=len(self.nodes))
            if statistics.clients == statistics.asked == len(self.nodes):
                return statistics
        raise AppError(
            f"the statistics of the columns are of {statistics.clients} of {len(self.nodes)} clients; boosted trees "
            "need the same rows in every sum. Bring the clients back, and start the run again",
            check="clients-differ",
        )

    def sums(
        self, action: str, content: RecordDict, group: str, *, before: Callable[[], None] = lambda: None
    ) -> tuple[NDArray[np.float64], float]:
        """Sums over all clients, and of how many rows; raises AppError if they never are over the same clients.

        Args:
            before: called before each attempt.
        """
        for attempt in range(_ATTEMPTS):
            if attempt:
                self.wait(_WAIT**attempt)
            before()
            numbers, clients, rows, reason = self._ask(action, content, group)
            known = self._rows.setdefault(action, rows) if clients == len(self.nodes) else -1.0
            if numbers is not None and rows == known:
                return numbers, rows
        raise AppError(
            f"a sum is over {clients:g} clients and {rows:g} rows, and the run began with {len(self.nodes)} clients"
            + (f" and {self._rows[action]:g} rows" if action in self._rows else "")
            + "; the trees of a run need the same rows in every sum. Bring the clients back, and start the run again"
            f"{f' ({reason})' if reason else ''}",
            check="clients-differ",
        )

    def _ask(
        self, action: str, content: RecordDict, group: str
    ) -> tuple[NDArray[np.float64] | None, float, float, str]:
        messages = [Message(content, node, f"query.{action}", group_id=group) for node in self.nodes]
        replies = list(self.grid.send_and_receive(messages))
        reasons = [str(reply.error.reason) for reply in replies if reply.has_error()]
        contents = [reply.content for reply in replies if not reply.has_error()]
        counts = [one.metric_records[COUNTS] for one in contents]
        clients, rows = (float(sum(_number(one[key]) for one in counts)) for key in ("clients", "rows"))
        parts = [np.asarray(one.metric_records[SUMS]["sums"], np.float64) for one in contents]
        if len({part.shape for part in parts}) != 1:
            return None, clients, rows, next(iter(reasons), "")
        return np.sum(parts, axis=0), clients, rows, next(iter(reasons), "")


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
