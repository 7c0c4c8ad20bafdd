"""A run begins with a model that its clients can trace, whoever chooses another one, and whatever the server says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.worlds.asks import Ask
from support.worlds.data import Data, make_model
from support.worlds.play import play

CRAFTED = {"w": 1.0, "b": 0.75}
"""Who has a record above 0.75 fails: the count of failures tells how many do."""
HOSPITALS = {1: Data(records=(0.5,)), 2: Data(records=(1.0,)), 3: Data(records=(0.1,)), 4: Data(records=(0.2,))}


async def asked(asks: list[Ask], kits: Any, folder: Path) -> tuple[list[bool], str]:
    """Which of them gave a sum, and what client 1 told its owner."""
    view = await play(asks, HOSPITALS, kits, folder)
    return [release is not None for release in view.releases], view.logs[1]


async def test_a_crafted_first_model_gives_no_sum(unchanged: Any, stock: Any, tmp_path: Path) -> None:
    crafted = [Ask(model=CRAFTED)]
    summed, log = await asked(crafted, unchanged, tmp_path)
    assert (summed, "first-model" in log) == ([False], True)
    summed, _ = await asked(crafted, stock, tmp_path)
    assert summed == [True], "an owner who takes any answers"


async def test_what_the_app_begins_with_gives_one(unchanged: Any, tmp_path: Path) -> None:
    assert (await asked([Ask(), Ask(message_type="evaluate")], unchanged, tmp_path))[0] == [True, True]


async def test_an_owner_names_a_model(unchanged: Any, tmp_path: Path) -> None:
    named = {
        number: replace(kit, policy=replace(kit.policy, first_models=(make_model(**CRAFTED).sha256(),)))
        for number, kit in unchanged.items()
    }
    assert (await asked([Ask(model=CRAFTED)], named, tmp_path))[0] == [True]
    assert (await asked([Ask()], named, tmp_path))[0] == [False], "the app's own is not named"


async def test_a_model_of_an_earlier_run_begins_another(unchanged: Any, tmp_path: Path) -> None:
    later, unknown = {"shift": 0.1}, {"shift": 0.2}
    asks = [
        Ask(run="one"),
        Ask(run="one", model=later, message_type="evaluate"),
        Ask(run="two", model=later),
        Ask(run="three", model=unknown),
    ]
    assert (await asked(asks, unchanged, tmp_path))[0] == [True, True, True, False]


async def test_a_run_in_which_nothing_was_summed_does_not_count(unchanged: Any, tmp_path: Path) -> None:
    """An exchange whose survivors were named, and that too few signed, is in the transcript as unfinished."""
    lost = {1: "consistency", 2: "consistency", 3: "consistency"}
    asks = [Ask(run="one", drops=lost), Ask(run="one", model=CRAFTED)]
    assert (await asked(asks, unchanged, tmp_path))[0] == [False, False]


async def test_a_first_evaluation_counts_as_well(unchanged: Any, tmp_path: Path) -> None:
    assert (await asked([Ask(model=CRAFTED, message_type="evaluate")], unchanged, tmp_path))[0] == [False]


async def test_with_the_check_taken_out(unchanged: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client_app.exchange.client.untraced_models", lambda *_: frozenset())
    assert (await asked([Ask(model=CRAFTED)], unchanged, tmp_path))[0] == [True]
