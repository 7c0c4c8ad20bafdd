"""Synthetic(alpha, beta) of FedProx: devices whose models, and whose inputs, differ by as much as two numbers say."""

from __future__ import annotations

import numpy as np

from fedcore.data.types import Dataset, Integers, Split
from fedcore.errors import ConfigurationError

FEATURES, CLASSES = 60, 10
_LEAST = 50
_TRAIN_SHARE = 0.9


def load_synthetic(alpha: float, beta: float, *, devices: int = 30, seed: int = 0, iid: bool = False) -> Dataset:
    """Made by the seed: x float32 [n, 60], y in 0..9; groups are devices, of at least 50 samples, split 90 / 10.

    Device k draws u ~ N(0, alpha) and B ~ N(0, beta); its labels are argmax(W x + b) with W, b ~ N(u, 1), its inputs x
    ~ N(v, S) with v ~ N(B, 1) and S diagonal, S_jj = j^-1.2. So alpha says how much the devices' models differ, and
    beta how much their data do. As in the authors' code alpha and beta are standard deviations, sizes
    floor(lognormal(4, 2)) + 50. Raises ConfigurationError. Source: Li et al. (2020), Federated Optimization in
    Heterogeneous Networks, MLSys, section 5.1, arXiv 1812.06127.

    Args:
        iid: W and b are the same for all, and v is B everywhere.
    """
    if not (0 <= alpha < np.inf and 0 <= beta < np.inf and devices > 0):
        raise ConfigurationError(
            f"Synthetic({alpha:g}, {beta:g}) over {devices} devices: both numbers are at least 0, and there is a "
            "device",
            check="synthetic-numbers",
        )
    rng = np.random.default_rng(seed)
    sizes = np.floor(rng.lognormal(4, 2, devices)).astype(np.int64) + _LEAST
    deviations = np.arange(1, FEATURES + 1) ** (-1.2 / 2)
    common = rng.normal(0, 1, (FEATURES + 1, CLASSES))
    x, y = [], []
    for size in sizes:
        model = common if iid else rng.normal(rng.normal(0, alpha), 1, (FEATURES + 1, CLASSES))
        mean = rng.normal(0, beta)
        centre = np.full(FEATURES, mean) if iid else rng.normal(mean, 1, FEATURES)
        inputs = rng.normal(centre, deviations, (size, FEATURES))
        x.append(inputs.astype(np.float32))
        y.append((inputs @ model[:-1] + model[-1]).argmax(axis=1))
    owner = np.repeat(np.arange(devices), sizes)
    everything = Split(x=np.concatenate(x), y=np.concatenate(y).astype(np.int64), groups=owner)
    trains = _training_rows(sizes)
    return Dataset(
        name=f"synthetic({alpha:g}, {beta:g})",
        train=everything.take(np.flatnonzero(trains)),
        test=everything.take(np.flatnonzero(~trains)),
        classes=CLASSES,
        group_names=tuple(f"device {number}" for number in range(1, devices + 1)),
    )


def _training_rows(sizes: Integers) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which rows train, bool [n]: the first 90 % of each device, whose samples are in no order."""
    return np.concatenate([np.arange(size) < int(_TRAIN_SHARE * size) for size in sizes])
