"""Poisoners that ruin a mean do not ruin robust strategies over the means of groups.

There are 21 clients in 7 groups of 3. A poisoner spoils its group, so f of them spoil f groups at most, and a median
of 7 stands 3 bad ones (docs/flower.md).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcore.federation import Policy

POISONED = Path(__file__).parents[2] / "apps" / "poisoned"
CLIENTS = 21
TRUTH = np.linspace(-1.0, 1.0, 8)
GROUPED = {"groups": 7, "max-corrupt": 0.0, "key-agreement": "x25519", "min-groups": 7}
Simulate = Callable[..., Any]


def policy(**changes: Any) -> Policy:
    return Policy.own(CLIENTS, min_cohort=3, min_threshold=2, min_corrupt=0.0, allow_x25519=True, **changes)


def distance(simulate: Simulate, **config: Any) -> float:
    """How far from the truth a run of 12 rounds ends; at the start it is 1.85."""
    finished = simulate(CLIENTS, app=POISONED, settings=GROUPED, policy=policy(), **config)
    return float(np.linalg.norm(finished.state["weight"] - TRUTH))


@pytest.mark.parametrize(
    ("strategy", "poisoners", "attack"),
    [
        ("FedMedian", 3, "sign-flip"),
        ("FedTrimmedAvg", 2, "label-flip"),
        ("Krum", 2, "sign-flip"),
        ("MultiKrum", 2, "label-flip"),
        ("Bulyan", 1, "label-flip"),
    ],
)
def test_poisoners_do_not_ruin_robust_strategies_over_groups(
    simulate: Simulate, strategy: str, poisoners: int, attack: str
) -> None:
    assert distance(simulate, strategy=strategy, poisoners=poisoners, attack=attack) < 0.2


def test_the_same_poisoners_ruin_the_mean(simulate: Simulate) -> None:
    assert distance(simulate, strategy="FedAvg", poisoners=0) < 0.1
    for attack in ("sign-flip", "label-flip"):
        assert not distance(simulate, strategy="FedAvg", poisoners=2, attack=attack) < 2.0


def test_more_bad_groups_than_a_median_stands_ruin_it(simulate: Simulate) -> None:
    """A third of the clients is too many for groups of 3: nearly every group has one of them."""
    assert not distance(simulate, strategy="FedMedian", poisoners=7) < 2.0
