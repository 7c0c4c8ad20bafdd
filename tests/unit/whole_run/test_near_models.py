"""Nearly the same model in two runs: the difference of two sums, and the rule that it counts as one model.

The server is honest and the kits are as provisioned: an operator runs an app twice, and in the second run a client is
lost in a later round.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.worlds.asks import Ask
from support.worlds.data import Data
from support.worlds.play import play
from support.worlds.server import Release

DATA = {number: Data(examples=10 * number, records=(0.1 * number,), secret=0.125 * number) for number in (1, 2, 3, 4)}
STEP, ASIDE = 0.1, 0.1 + 1e-3
FIRST = [Ask(run="one"), Ask(run="one", model={"shift": STEP})]
SECOND = [Ask(run="two"), Ask(run="two", model={"shift": ASIDE}, drops={4: "input"})]


def weighted(release: Release, shift: float) -> float:
    """The sum of the updates of one element, each times its client's examples."""
    assert release.decoded is not None
    assert release.decoded.state is not None
    moved = release.decoded.state["layer"].astype(float) - (np.array([0.25, -1.0, 2.0]) + shift)
    return float(moved.mean() * release.decoded.examples)


@pytest.fixture(autouse=True)
def without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)  # what a crash would leave is the subject of other tests


async def summed(asks: list[Ask], kits: Any, folder: Path) -> list[bool]:
    view = await play(asks, DATA, kits, folder)
    assert all(("differencing" in log) is (view.releases[-1] is None) for log in list(view.logs.values())[:3])
    return [release is not None for release in view.releases]


async def test_without_the_rule_the_difference_is_the_update_of_who_was_lost(
    owned: Callable[..., Any], tmp_path: Path
) -> None:
    view = await play([*FIRST, *SECOND], DATA, owned(near_models=0.0), tmp_path)
    full, partial = view.releases[1], view.releases[3]
    assert full is not None
    assert partial is not None
    lost = DATA[4].examples * (DATA[4].records[0] + DATA[4].secret)
    assert weighted(full, STEP) - weighted(partial, ASIDE) == pytest.approx(lost, rel=1e-4)


async def test_with_it_there_is_no_second_sum(stock: Any, tmp_path: Path) -> None:
    assert await summed([*FIRST, *SECOND], stock, tmp_path) == [True, True, True, False]


async def test_the_smaller_sum_first_helps_nobody(stock: Any, tmp_path: Path) -> None:
    """Client 4 does not know of the first one's model; the other three do, and without them there is no quorum."""
    smaller = [FIRST[0], Ask(run="one", model={"shift": STEP}, cohort=(1, 2, 3))]
    asks = [*smaller, SECOND[0], Ask(run="two", model={"shift": ASIDE})]
    assert await summed(asks, stock, tmp_path) == [True, True, True, False]


async def test_the_same_clients_may_be_asked(stock: Any, tmp_path: Path) -> None:
    asks = [*FIRST, SECOND[0], Ask(run="two", model={"shift": ASIDE})]
    assert await summed(asks, stock, tmp_path) == [True] * 4


async def test_a_step_away_a_client_may_be_lost(stock: Any, tmp_path: Path) -> None:
    """In an honest run, round after round, and in another one that goes its own way."""
    rounds = [Ask(run="one", model={"shift": shift}, drops=drops) for shift, drops in ((0.0, {}), (0.1, {4: "input"}))]
    more = [Ask(run="one", model={"shift": 0.15}), Ask(run="one", model={"shift": 0.16}, drops={1: "advertise"})]
    other = [Ask(run="two"), Ask(run="two", model={"shift": -0.1}, drops={3: "share"})]
    assert await summed([*rounds, *more, *other], stock, tmp_path) == [True] * 6


async def test_how_near_is_the_owner_s_to_say(owned: Callable[..., Any], tmp_path: Path) -> None:
    far = [*FIRST, SECOND[0], Ask(run="two", model={"shift": STEP + 0.05}, drops={4: "input"})]
    assert await summed(far, owned(near_models=0.25), tmp_path) == [True] * 4
    assert await summed(far, owned(near_models=0.75), tmp_path) == [True, True, True, False]


async def test_evaluations_count_as_well(stock: Any, tmp_path: Path) -> None:
    """Of the same two models; their sums are of metrics and examples."""
    asks = [Ask(**{**vars_of(ask), "message_type": "evaluate"}) for ask in (*FIRST, *SECOND)]
    assert await summed(asks, stock, tmp_path) == [True, True, True, False]


def vars_of(ask: Ask) -> dict[str, Any]:
    return {"run": ask.run, "model": ask.model, "drops": ask.drops}


async def test_what_the_data_are_decides_nothing(stock: Any, tmp_path: Path) -> None:
    """An update that exceeds its scale, or none at all, moves no border."""
    for data in (Data(), Data(outcome="app-raises"), Data(examples=0)):
        view = await play([*FIRST, *SECOND], {**DATA, 1: data}, stock, tmp_path)
        assert view.releases[3] is None


async def test_with_the_check_taken_out(stock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedcore.federation.admission.admit.counts_near_models", lambda *_: False)
    assert await summed([*FIRST, *SECOND], stock, tmp_path) == [True] * 4
