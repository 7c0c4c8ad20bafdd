"""Least squares, of which every client has examples of its own; some clients send poison in place of their updates."""

import numpy as np

DIMENSIONS = 8
EXAMPLES = 40
TRUTH = np.linspace(-1.0, 1.0, DIMENSIONS).astype(np.float32)


def data_of(client: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of a client, with a little noise."""
    rng = np.random.default_rng(client)
    x = rng.normal(size=(EXAMPLES, DIMENSIONS)).astype(np.float32)
    return x, x @ TRUTH + rng.normal(scale=0.1, size=EXAMPLES).astype(np.float32)
