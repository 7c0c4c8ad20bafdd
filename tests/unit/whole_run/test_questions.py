"""What an operator asks to learn of one client's data: with a stock policy, and where its owner allows the key.

Each question is put where the answers of two clients differ, which is what a bisection does at every step. A refusal
names the server's own key, before anything private is touched; where there is none, the answers look alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.worlds.asks import Ask
from support.worlds.data import Data
from support.worlds.play import View, compare, isolated, play

from fedcore.federation import ClientKit, Policy, provision
from fedcore.federation.policy import ANY_MODEL

HOSPITALS = {
    1: Data(examples=199, records=(1.75,), metrics={"acc": 0.81}),
    2: Data(examples=30, records=(0.5,), metrics={"acc": 0.92}),
    3: Data(examples=172, records=(1.0,), metrics={"acc": 0.85}),
    4: Data(examples=85, records=(1.25,), metrics={"acc": 0.75}),
}
"""As many patients as the four hospitals of the heart disease data have."""
NOISED = {"dp-noise-multiplier": 8.0, "clip-norm": 1.0}


def asked(*changes: Mapping[str, Any], **settings: Any) -> list[Ask]:
    """An exchange for each change, each from a model of its own: from one alone nobody answers twice."""
    return [Ask(model={"shift": 0.5 * place}, **change, **settings) for place, change in enumerate(changes)]


QUESTIONS: Mapping[str, list[Ask]] = {
    "w-max": asked(*({"settings": {"w-max": bound}} for bound in (50, 180))),
    "metric-max": asked(*({"settings": {"metric-max": bound}} for bound in (0.85, 0.9))),
    "clipping": asked(*({"settings": {"clipping": way}} for way in ("warn", "fail"))),
    "max-metrics": asked(*({"settings": {"max-metrics": most}} for most in (1, 2))),
    "lr": asked(*({"run_config": {"lr": rate}} for rate in (0.1, 1e30))),
    "lr, with differential privacy": asked(*({"run_config": {"lr": rate}} for rate in (1e38,)), settings=NOISED),
}


def steps(view: View, client: int) -> list[str]:
    """The routes that a client used, exchange after exchange."""
    return [f"{seen.method} {seen.target.split('?')[0].rsplit('/', 1)[-1]}" for seen in view.requests[client]]


@pytest.mark.parametrize("question", QUESTIONS)
async def test_a_stock_policy_refuses_to_be_asked(stock: Any, tmp_path: Path, question: str) -> None:
    view, found = await compare(QUESTIONS[question], HOSPITALS, stock, tmp_path)
    assert found == []
    assert view.releases == [None] * len(QUESTIONS[question])
    assert not {"PUT advertisement", "GET model"}.intersection(steps(view, 1))
    assert "config-not-allowed" in view.logs[1]


@pytest.mark.parametrize("question", QUESTIONS)
async def test_an_owner_who_allows_the_key_answers_for_no_client(
    owned: Callable[..., Any], tmp_path: Path, question: str
) -> None:
    view, found = await compare(QUESTIONS[question], HOSPITALS, owned(allow_config={"*": True}), tmp_path)
    assert found == []
    assert all(release is not None and release.survivors == (1, 2, 3, 4) for release in view.releases)


async def test_who_needs_longer_cannot_be_left_out_by_the_clock(stock: Any, tmp_path: Path) -> None:
    """The same model with plenty of time, and with time for all but the largest."""
    slow = {number: replace(data, seconds=data.examples / 10) for number, data in HOSPITALS.items()}
    view, found = await compare([Ask(), Ask(task={"seconds": 18.0})], slow, stock, tmp_path)
    assert found == []
    assert view.releases[1] is None
    assert "too-short" in view.logs[1]


@pytest.mark.parametrize("bound", [0.75, 1.1, 1.5])
async def test_a_crafted_model_does_not_tell_who_has_such_a_record(stock: Any, tmp_path: Path, bound: float) -> None:
    """Whether client i has a record with w x > b."""
    view, found = await compare([Ask(model={"w": 1.0, "b": bound})], HOSPITALS, stock, tmp_path)
    assert found == []
    assert view.releases[0].survivors == (1, 2, 3, 4)
    assert len({tuple(steps(view, client)) for client in HOSPITALS}) == 1


async def test_sums_far_apart_in_pairs_give_no_client(tmp_path: Path) -> None:
    """The first less the next two and with the last would be client 1; any two differ by three clients or more."""
    policy = replace(Policy.default(8), first_models=(ANY_MODEL,))
    made = provision(tmp_path / "fed", name="testing", clients=8, now=datetime.now(UTC), policy=policy)
    kits = {number: ClientKit.load(folder) for number, folder in enumerate(made.clients, start=1)}
    sums = ((1, 2, 3, 6), (4, 5, 6), (2, 3, 7, 8), (4, 5, 7, 8))
    view = await play([Ask(cohort=cohort) for cohort in sums], {number: Data() for number in kits}, kits, tmp_path)
    assert [release is not None for release in view.releases] == [True, False, False, False]
    assert [*isolated(view.releases, 3)] == []
    for refusing in (6, 2, 4):
        assert "differencing" in view.logs[refusing]
