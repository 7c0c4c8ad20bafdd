"""Groups in memory: the same draw, the same checks, and a reply for each group."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from support.raising import raises

from fedcore.errors import AppError, ConfigurationError, RunFailed
from fedcore.federation import Policy

POISONED = Path(__file__).parents[2] / "apps" / "poisoned"
CLIENTS = 21
TRUTH = np.linspace(-1.0, 1.0, 8)
GROUPED = {"groups": 7, "max-corrupt": 0.0, "key-agreement": "x25519", "min-groups": 7}
Simulate = Callable[..., Any]


def policy(**changes: Any) -> Policy:
    return Policy.own(CLIENTS, min_cohort=3, min_threshold=2, min_corrupt=0.0, allow_x25519=True, **changes)


def test_three_poisoners_of_21_ruin_a_mean_and_not_a_median_of_seven_groups(simulate: Simulate) -> None:
    """In two rounds; tests/thorough/run has all strategies and attacks."""

    def distance(strategy: str) -> float:
        finished = simulate(
            CLIENTS, app=POISONED, settings=GROUPED, policy=policy(), strategy=strategy, poisoners=3,
            num_server_rounds=2,
        )  # fmt: skip
        return float(np.linalg.norm(finished.state["weight"] - TRUTH))

    assert distance("FedMedian") < 1.0
    assert distance("FedAvg") > 2 * np.linalg.norm(TRUTH)


def test_the_mean_over_groups_is_the_mean_over_clients(simulate: Simulate) -> None:
    grouped = simulate(CLIENTS, app=POISONED, settings=GROUPED, policy=policy(), num_server_rounds=2, strategy="FedAvg")
    whole = simulate(
        CLIENTS, app=POISONED, settings={**GROUPED, "groups": 1, "min-groups": 0}, policy=policy(),
        num_server_rounds=2, strategy="FedAvg",
    )  # fmt: skip
    np.testing.assert_allclose(grouped.state["weight"], whole.state["weight"], atol=1e-3)
    done = grouped.of("exchange-done")
    assert [(event["groups"], event["examples"], len(event["survivors"])) for event in done] == [(7, 840, 21)] * 2


def test_groups_are_drawn_anew_in_every_round_and_nobody_is_in_two(simulate: Simulate) -> None:
    finished = simulate(CLIENTS, app=POISONED, settings=GROUPED, policy=policy(), num_server_rounds=3)
    for event in finished.of("exchange-done"):
        assert len(event["survivors"]) == len(set(event["survivors"])) == CLIENTS


def test_a_group_that_lost_too_many_gives_no_mean(simulate: Simulate) -> None:
    """With three in each, every dropout costs a group its sum."""
    with raises(RunFailed, check="min-groups", match=r"\b7\b.*min-groups.*\d"):
        simulate(
            CLIENTS, app=POISONED, settings={**GROUPED, "max-attempts": 1}, policy=policy(), drop=0.1, seed=3,
            num_server_rounds=3,
        )  # fmt: skip


def test_what_cannot_be_is_refused_by_name(simulate: Simulate) -> None:
    with raises(ConfigurationError, check="too-few-for-groups", match=r"groups = 8.*24.*21"):
        simulate(CLIENTS, app=POISONED, settings={**GROUPED, "groups": 8}, policy=policy())
    with raises(AppError, check="secure-aggregation", match="FedMedian"):
        simulate(
            CLIENTS, app=POISONED, settings={**GROUPED, "groups": 1, "min-groups": 0}, policy=policy(),
            strategy="FedMedian",
        )  # fmt: skip
    with raises(AppError, check="group-count", match=r"Krum\D+7"):
        simulate(CLIENTS, app=POISONED, settings={**GROUPED, "min-groups": 6}, policy=policy(), strategy="Krum")
