"""Members leave and come between sums: what the adversary sees depends on one that left by its allowed sums alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.worlds.asks import Ask
from support.worlds.data import Data
from support.worlds.play import View, differences, isolated, play, same_encapsulations

from fedcore.federation import ClientKit, provision
from fedcore.federation.policy import ANY_MODEL
from fedcore.federation.transcript import Chain

STAY, LEFT, NEW = (1, 2, 3), 4, (5, 6, 7, 8, 9, 10, 11)
SCALE = {"config": {"statistics-columns": ["age"], "statistics-mean": [51.5], "statistics-std": [12.25]}}
GROWTH = ((*STAY, LEFT), (*STAY, *NEW), NEW)
"""One leaves, and seven come, who are more than two thirds of the next sum; then they are asked by themselves."""


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, ClientKit]:
    """Eleven owners with stock policies; who was not asked yet is one who comes."""
    made = provision(tmp_path_factory.mktemp("eleven") / "fed", name="testing", clients=11, now=datetime.now(UTC))
    kits = {number: ClientKit.load(folder) for number, folder in enumerate(made.clients, start=1)}
    return {number: replace(kit, policy=replace(kit.policy, first_models=(ANY_MODEL,))) for number, kit in kits.items()}


async def two_worlds(asks: Sequence[Ask], kits: Mapping[int, ClientKit], folder: Path, left: int) -> View:
    """What the adversary gets, after a check that no more of it depends on the data of `left` than sums with it."""
    data = {number: Data(records=(number / 8,), examples=10 * number) for number in kits}
    other = {**data, left: Data(records=(3.0, -1.5), examples=333, secret=0.75)}
    with same_encapsulations():
        here = await play(asks, data, kits, folder)
        there = await play(asks, other, kits, folder)
    with_it = [
        f"exchange {number}:"
        for number, release in enumerate(here.releases, start=1)
        if release is not None and left in release.survivors
    ]
    assert [text for text in differences(here, there, ()) if not text.startswith(tuple(with_it))] == []
    assert list(isolated(here.releases, 3)) == []
    return here


def released(view: View) -> list[tuple[int, ...] | None]:
    return [release and release.survivors for release in view.releases]


async def test_a_member_is_replaced_and_the_scale_stays(stock: Any, tmp_path: Path) -> None:
    """Three are asked and train; one of them is replaced: asked again they refuse, and on the old scale they train."""
    three, four = (1, 2, 3), (1, 2, 4)
    asks = [
        Ask(message_type="query.statistics", cohort=three),
        Ask(cohort=three, configs=SCALE),
        Ask(message_type="query.statistics", cohort=four, run="run-2"),
        Ask(cohort=four, configs=SCALE, run="run-3"),
        Ask(cohort=four, configs=SCALE, run="run-4", model={"shift": 1.0}),
    ]
    view = await two_worlds(asks, stock, tmp_path, left=3)
    assert released(view) == [three, three, None, None, four]


@pytest.mark.parametrize("kind", ["query.statistics", "train"])
async def test_who_comes_does_not_outvote_who_stays(kits: Mapping[int, ClientKit], tmp_path: Path, kind: str) -> None:
    """Together the three sums would be those who stay, and so the one that left."""
    asks = [Ask(message_type=kind, cohort=cohort) for cohort in GROWTH]
    view = await two_worlds(asks, kits, tmp_path, left=LEFT)
    assert released(view)[:2] == [GROWTH[0], None]


async def test_who_takes_the_past_on_trust_outvotes_who_stays(
    kits: Mapping[int, ClientKit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same without what newcomers hear of earlier sums."""
    known = Chain.sums

    def of_own_time(chain: Chain, *args: Any, **kwargs: Any) -> set[frozenset[int]]:
        return known(replace(chain, earlier=[]), *args, **kwargs)

    monkeypatch.setattr(Chain, "sums", of_own_time)
    data = {number: Data(examples=number) for number in kits}
    view = await play([Ask(message_type="query.age", cohort=cohort) for cohort in GROWTH], data, kits, tmp_path)
    assert released(view) == list(GROWTH)
    assert any(text.endswith(f"give that of [{LEFT}]") for text in isolated(view.releases, 3))


async def test_as_many_as_a_sum_needs_may_come_and_go_together(kits: Mapping[int, ClientKit], tmp_path: Path) -> None:
    before, after = (1, 2, 3, 4, 5, 6), (4, 5, 6, 7, 8, 9)
    asks = [Ask(message_type="query.statistics", cohort=cohort) for cohort in (before, after, (4, 5, 6, 7, 8, 10))]
    view = await two_worlds(asks, kits, tmp_path, left=1)
    assert released(view) == [before, after, None]
