"""A run with norm proofs in real processes: who pushes a million times as far as others moves the model by as much."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from support.deployment import Deployment

SITES, CLIP, PUSH = 4, 2.0, 1e6


def expected(weight: NDArray[np.float32]) -> NDArray[np.float64]:
    """The mean of the four sites' updates after one round, each cut to the norm; every site weighs the same."""
    mean = np.zeros(weight.size)
    for site in range(SITES):
        point = np.random.default_rng(site).normal(loc=5.0, size=weight.size)
        update = 0.5 * (point - weight)
        update[0] += PUSH if site == SITES - 1 else 0.0
        mean += update * min(1.0, CLIP / float(np.linalg.norm(update))) / SITES
    return weight + mean


def test_no_site_moves_the_model_by_more_than_the_bound(uneven: Deployment) -> None:
    settings = {"norm-proof": "l2", "clip-norm": CLIP, "step-seconds": 120}
    done = uneven.submit(
        settings=settings, num_server_rounds=1, large_round=1, large_site=SITES - 1, large_by=PUSH
    ).finish()
    assert done.status == 0, done.stderr
    weight = done.arrays()["weight"]
    np.testing.assert_allclose(weight, expected(np.zeros_like(weight)), atol=CLIP / 512)
    (trained,) = [event for event in done.of("exchange-done") if event["message_type"] == "train"]
    assert trained["examples"] == SITES
    for number in range(1, SITES + 1):
        assert "norm" in uneven.log(f"client-{number}")
