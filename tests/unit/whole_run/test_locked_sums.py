"""A model under which all but one fail: the sum stays closed, and without the lock it lays that one open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.worlds.asks import Ask
from support.worlds.data import Data
from support.worlds.play import play

CRAFTED = Ask(model={"w": 1.0, "b": 0.75})
DATA = {number: Data(records=(0.5 * number,), examples=10 * number, secret=0.125 * number) for number in (1, 2, 3, 4)}


async def test_a_sum_to_which_one_alone_contributed_stays_closed(stock: Any, tmp_path: Path) -> None:
    (release,) = (await play([CRAFTED], DATA, stock, tmp_path)).releases
    assert (release.survivors, release.failures, release.decoded) == ((1, 2, 3, 4), 3, None)
    assert release.why.startswith(
        "3 of 4 clients contributed nothing; their own logs say why. The sum of the others stays"
    )
    assert not set(range(5000)) & set(release.words.tolist()) - {3}


async def test_nobody_signs_that_more_may_fail(stock: Any, tmp_path: Path) -> None:
    asks = [replace(CRAFTED, encoding={"failures": 3}), replace(CRAFTED, encoding={"failures": 1})]
    view = await play(asks, DATA, stock, tmp_path)
    assert view.releases == [None, None]
    assert view.logs[1].count("cohort-below-minimum") == 2


async def test_without_the_lock_it_is_that_ones_update(stock: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("fedcore.codec.encoder.apply_lock", lambda words, spared, masks: None)
    monkeypatch.setattr("fedcore.codec.decoder.unlock", lambda _, words, *rest: (3, words))
    (release,) = (await play([CRAFTED], DATA, stock, tmp_path)).releases
    assert release.decoded.examples == DATA[1].examples
    assert release.decoded.state["layer"][0] == pytest.approx(0.25 + 0.5 + DATA[1].secret, abs=1e-2)
