"""examples/synthetic: late devices do less, or take no part, and what the server says decides who is late."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.simulated import simulate

from fedcore.errors import CohortBelowMinimum
from tests.thorough.examples.flower_messages import EXAMPLES, app_modules, context, message, run_config

__all__ = ["simulate"]


def trained(late: list[int], **changes: Any) -> Any:
    """What device 2 answers in round 5."""
    config = run_config("synthetic", **changes)
    with app_modules("synthetic") as (_, client, _):
        asked = message("train", client.app.initial_arrays(config), 5, 3)
        asked.content["config"]["late-nodes"] = late
        asked.content["config"]["proximal-mu"] = 0.0
        return client.app(asked, context(config, 2, 30)).content


def test_a_late_device_does_some_of_the_epochs() -> None:
    full, part, again = trained([]), trained([1, 3]), trained([3])
    assert full["metrics"]["num-examples"] == part["metrics"]["num-examples"] > 40
    # The mean loss over fewer epochs is larger.
    assert part["metrics"]["train_loss"] > full["metrics"]["train_loss"]
    assert part["metrics"] == again["metrics"]


def dropping(simulate: Callable[..., Any], late: float, aggregation: str) -> Any:
    """Two rounds of ten devices each."""
    return simulate(
        30, app=Path(EXAMPLES / "synthetic"), settings={"aggregation": aggregation}, num_server_rounds=2,
        local_epochs=1, fraction_evaluate=0.0, late=late, drop_late=True, central_test=100,
    )  # fmt: skip


@pytest.mark.parametrize(("aggregation", "late", "on_time"), [("secure", 0.5, 5), ("plain", 0.5, 5), ("plain", 0.9, 1)])
def test_or_takes_no_part(simulate: Callable[..., Any], aggregation: str, late: float, on_time: int) -> None:
    done = dropping(simulate, late, aggregation)
    rounds = done.of("exchange-done")
    assert [len(each["survivors"]) for each in rounds] == [on_time, on_time]
    assert rounds[0]["survivors"] != rounds[1]["survivors"]
    assert [found["server_round"] for found in done.of("figures")] == [0, 1, 2]


def test_one_that_is_on_time_is_no_secure_sum(simulate: Callable[..., Any]) -> None:
    with pytest.raises(CohortBelowMinimum):
        dropping(simulate, 0.9, "secure")
