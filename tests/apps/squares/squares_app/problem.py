"""What clients train on, and how."""

import numpy as np

RATE = 0.05
_RNG = np.random.default_rng(5)
X = [_RNG.normal(size=(6 + 3 * i, 3)) * (1 + 0.4 * i) for i in range(1, 5)]
Y = [x @ _RNG.normal(size=3) + i for i, x in enumerate(X, start=1)]
STEPS = (1, 5, 2, 6)
