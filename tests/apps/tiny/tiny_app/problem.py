"""The data and the model: least squares with a full-batch gradient, in float32 and NumPy alone."""

import numpy as np
from numpy.typing import NDArray

FEATURES = 5
EXAMPLES = 64

Array = NDArray[np.float32]


def initial() -> dict[str, NDArray]:
    """Weights, a counter like BatchNorm's, and half-precision values that training leaves alone."""
    rng = np.random.default_rng(3)
    return {
        "weight": rng.normal(size=FEATURES).astype(np.float32),
        "counter": np.array(0, np.int64),
        "half": np.array([0.5, -2.0], np.float16),
    }


def part(index: int, parts: int) -> tuple[Array, Array]:
    """Rows index, index + parts, ... of the data; parts of unequal size where they do not divide."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(EXAMPLES, FEATURES)).astype(np.float32)
    y = (x @ np.arange(FEATURES, dtype=np.float32) + 1).astype(np.float32)
    return x[index::parts], y[index::parts]


def gradient(weight: Array, x: Array, y: Array) -> Array:
    """Of the mean squared error, [FEATURES] float32."""
    return (2 / len(x)) * (x.T @ (x @ weight - y))


def loss(weight: Array, x: Array, y: Array) -> float:
    """Mean squared error."""
    return float(np.mean((x @ weight - y) ** 2))
