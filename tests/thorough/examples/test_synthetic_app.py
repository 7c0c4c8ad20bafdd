"""examples/synthetic: late devices do less, or nothing, and what the server says decides who is late."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.simulated import simulate

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


def test_or_is_left_out() -> None:
    assert trained([3], drop_late=True)["metrics"]["num-examples"] == 0
    assert trained([4], drop_late=True)["metrics"]["num-examples"] > 40


@pytest.mark.parametrize("aggregation", ["secure", "plain"])
def test_one_in_ten_is_on_time_and_makes_the_round(simulate: Callable[..., Any], aggregation: str) -> None:
    app = Path(EXAMPLES / "synthetic")
    done = simulate(
        30, app=app, settings={"aggregation": aggregation}, num_server_rounds=2, local_epochs=1, fraction_evaluate=0.0,
        drop_late=True, central_test=100,
    )  # fmt: skip
    rounds = done.of("exchange-done")
    assert [len(each["survivors"]) for each in rounds] == [10, 10]
    # Of ten, nine have no examples.
    assert all(0 < each["examples"] < 30_000 for each in rounds)
    assert [found["server_round"] for found in done.of("figures")] == [0, 1, 2]
