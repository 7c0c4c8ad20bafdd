"""One model gets one question: what else the server could choose about it is refused, or reaches nobody.

Each attack here opened a second sum, or a sum of one client, before the question had a digest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.worlds.asks import Ask
from support.worlds.data import LAYOUTS, Data, make_model
from support.worlds.play import play

DATA = {number: Data(examples=10 * number, secret=0.125 * number) for number in (1, 2, 3, 4)}


def again_in(layout: str, kind: str = "train") -> list[Ask]:
    """The model that comes after the first one, and once more in another layout, without client 4."""
    later = Ask(message_type=kind, model={"shift": 1.0})
    return [Ask(), later, replace(later, state=make_model(shift=1.0, layout=layout), drops={4: "input"})]


TWO_BOUNDS = [Ask(configs={"config": {"clip-bound": bound}}) for bound in (1.0, 2.0)]


@pytest.mark.parametrize(
    ("asks", "check"),
    [
        (TWO_BOUNDS, "other-question"),
        ([Ask(), Ask(task={"server_round": 2})], "other-question"),
        ([Ask(), Ask(task={"message_type": "train.again"})], "other-question"),
        ([Ask(), Ask(task={"arrays_key": "others"})], "other-question"),
        ([Ask(), Ask(run="run-2", configs={"config": {"x": 1.0}})], "other-question"),
        ([Ask(), Ask(metadata={"format": "pt"}, drops={4: "input"})], "model-not-canonical"),
    ],
    ids=["two bounds in a message", "round", "type", "key", "another run", "metadata"],
)
async def test_a_second_question_about_a_model_gets_no_answer(
    stock: Any, tmp_path: Path, asks: list[Ask], check: str
) -> None:
    view = await play(asks, DATA, stock, tmp_path)
    assert [release is not None for release in view.releases] == [True, False]
    assert all(check in log for log in view.logs.values())


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_later_model_in_another_layout_is_no_other_model(
    unchanged: Any, tmp_path: Path, layout: str, kind: str
) -> None:
    """The first model of a run is traced by its hash; of a later one the layout has to be that of those before it."""
    view = await play(again_in(layout, kind), DATA, unchanged, tmp_path)
    assert [release is not None for release in view.releases] == [True, True, False]
    assert all("other-layout" in log for log in view.logs.values())


async def test_the_function_of_a_message_type_has_two_names(unchanged: Any, tmp_path: Path) -> None:
    asks = [Ask(), Ask(message_type="train.default", state=make_model(shift=1.0, layout="reversed"))]
    assert (await play(asks, DATA, unchanged, tmp_path)).releases[1] is None


async def test_a_message_type_of_its_own_may_have_another_model(unchanged: Any, tmp_path: Path) -> None:
    asks = [Ask(), Ask(message_type="train.large", state=make_model(shift=1.0, layout="unused"))]
    assert None not in (await play(asks, DATA, unchanged, tmp_path)).releases


async def test_the_weight_is_that_of_the_agreed_settings(stock: Any, tmp_path: Path) -> None:
    """A metric that is zero at all sites but one would weigh one update alone."""
    view = await play([Ask(task={"weight_key": "loss"})], DATA, stock, tmp_path)
    assert view.releases == [None]
    assert all("weight-key" in log for log in view.logs.values())


async def test_the_same_question_is_answered_again(stock: Any, tmp_path: Path) -> None:
    view = await play([Ask(), Ask(run="run-2")], DATA, stock, tmp_path)
    assert None not in view.releases


async def test_an_owner_may_leave_a_key_to_the_run(owned: Callable[..., Any], tmp_path: Path) -> None:
    bounds = {"clip-bound": (0.0, 10.0)}
    view = await play(TWO_BOUNDS, DATA, owned(allow_config=bounds), tmp_path)
    assert None not in view.releases
    more = [*TWO_BOUNDS, Ask(configs={"config": {"clip-bound": 1.0, "other": 1}})]
    view = await play(more, DATA, owned(allow_config=bounds), tmp_path)
    assert view.releases[2] is None


async def test_who_has_no_examples_makes_nobody_elses_update_the_sum(stock: Any, tmp_path: Path) -> None:
    """A sum in which all weights but one are zero would be that client's update."""
    lone = {number: replace(data, examples=data.examples if number == 3 else 0) for number, data in DATA.items()}
    view = await play([Ask(), Ask(message_type="evaluate")], lone, stock, tmp_path)
    assert [release.decoded for release in view.releases] == [None, None]
