"""Norm proofs between real sessions and a real server: honest clients, cheats, dropouts, a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.members import Failure, Member
from support.serverside import ScriptedApp, Site, events_of, site
from support.services import federation

from fedcore.federation import FederationFolder
from fedcore.state import ModelState
from fedcore.wire.problems import ProblemKind
from server_app.runs.app.messages import ExchangeRefused, Replies

__all__ = ["federation"]

ALL = [1, 2, 3, 4]
CLIP = 0.5
SETTINGS = {"norm-proof": "l2", "clip-norm": CLIP, "step-seconds": 60.0, "max-attempts": 2}


@pytest.fixture
def model() -> ModelState:
    return ModelState.from_arrays({"w": np.zeros((40, 5), np.float32), "b": np.zeros(5, np.float32)})


@pytest.fixture
async def here(federation: FederationFolder, tmp_path: Path) -> AsyncIterator[Site]:
    async with site(federation, tmp_path) as made:
        yield made


async def begun(
    here: Site, model: ModelState, settings: Mapping[str, object] | None = None
) -> tuple[str, ScriptedApp, asyncio.Task[object], list[Member]]:
    run, app = await here.begin({**SETTINGS, **(settings or {})})
    asked = asyncio.create_task(app.exchange(model, ALL))
    return run, app, asked, await here.enter_all()


def mean_of(answer: object) -> NDArray[np.float32]:
    assert isinstance(answer, Replies), answer
    return np.concatenate([value.ravel() for _, value in answer.replies[0].model().items()])


def clipped(by: float, model: ModelState) -> float:
    size = sum(value.size for _, value in model.items())
    return min(by, CLIP / np.sqrt(size))


async def test_honest_clients_are_in_the_sum_one_that_failed_too(here: Site, model: ModelState) -> None:
    run, app, asked, members = await begun(here, model)
    for member, by in zip(members, (0.01, 0.02, 5.0, 7.0), strict=True):
        member.local.by = by
    members[3].local.fails = True
    await asyncio.gather(*(member.secure() for member in members))
    mean = mean_of(await asked)
    expected = np.mean([clipped(by, model) for by in (0.01, 0.02, 5.0)])
    assert np.abs(mean - expected).max() < 0.001
    record = await here.finish(run, app)
    assert not events_of(record, "dropped")
    (done,) = events_of(record, "exchange-done")
    assert done["failures"] == 1


async def test_who_has_no_proof_is_named_and_the_others_go_on(here: Site, model: ModelState) -> None:
    run, app, asked, members = await begun(here, model)
    cheater, others = members[1], [members[0], *members[2:]]
    cheater.local.stretch, cheater.local.spoils = 30, True
    for member in members:
        member.local.by = 0.01
    await asyncio.gather(*(member.secure(until="unmask") for member in members))
    await asyncio.gather(*(member.enter() for member in others))
    await asyncio.gather(*(member.secure() for member in others))
    assert np.abs(mean_of(await asked) - 0.01).max() < 0.001
    (blamed,) = events_of(await here.finish(run, app), "blamed")
    assert (blamed["client"], blamed["reason"]) == ("client-2", "norm-proof")


async def test_a_sum_with_another_vector_than_was_proved_is_not_passed_on(here: Site, model: ModelState) -> None:
    _, _, asked, members = await begun(here, model, {"max-attempts": 1})
    members[1].local.stretch = 30
    await asyncio.gather(*(member.secure() for member in members))
    answer = await asked
    assert isinstance(answer, ExchangeRefused)
    assert "proved" in answer.reason


async def test_who_leaves_before_its_proof_costs_an_attempt(here: Site, model: ModelState) -> None:
    run, app, asked, members = await begun(here, model)
    leaver, others = members[1], [members[0], *members[2:]]
    await asyncio.gather(*(member.secure(until="sign") for member in members))
    await leaver.withdraw()
    await asyncio.gather(*(member.sign() for member in others))
    await asyncio.gather(*(member.enter() for member in members))
    await asyncio.gather(*(member.secure() for member in members))
    assert isinstance(await asked, Replies)
    record = await here.finish(run, app)
    assert not events_of(record, "blamed")
    assert [one["client"] for one in events_of(record, "dropped")] == ["client-2"]


async def test_sizes_that_are_none_are_refused(here: Site, model: ModelState) -> None:
    _, _, asked, members = await begun(here, model, {"max-attempts": 1})
    await asyncio.gather(*(member.secure(until="upload") for member in members))
    body, manifest = members[0].vector()
    await members[0].send(body)
    with pytest.raises(Failure) as refused:
        await members[0].put("manifest", manifest.model_copy(update={"pads": None}))
    assert refused.value.kind == ProblemKind.MALFORMED
    await asyncio.gather(*(member.withdraw() for member in members))
    assert isinstance(await asked, ExchangeRefused)
