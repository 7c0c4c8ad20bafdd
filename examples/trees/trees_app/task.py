"""What the server and the clients share: the columns, their bounds, and how the table is divided."""

from functools import lru_cache
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

from fedcore.data import Dataset, Split, client_data
from fedcore.flower.apps.statistics import app_bounds

BOUNDS = app_bounds(Path(__file__).parents[1])
COLUMNS = tuple(name for name in BOUNDS if name != "y")


@lru_cache(maxsize=1)
def table() -> Dataset:
    """569 tumours, every fifth in the test part: x float32 [n, 30] in the columns' units, y 1 for a benign one."""
    x, y = load_breast_cancer(return_X_y=True)
    rows = Split(x=x.astype(np.float32), y=y.astype(np.int64))
    test = np.arange(len(rows)) % 5 == 0
    parts = (rows.take(np.flatnonzero(~test)), rows.take(np.flatnonzero(test)))
    return Dataset(name="breast_cancer", train=parts[0], test=parts[1], classes=2)


@lru_cache(maxsize=128)
def local_data(partition: str, client: int, clients: int, seed: int) -> tuple[Split, Split]:
    """Training and test part of one client; kept, since it is asked for in every query."""
    return client_data(table(), partition, client=client, clients=clients, seed=seed)
