"""Updates that exceed the scales of an exchange: who is asked again, how, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from support.members import Failure, Local, Member
from support.serverside import Site, events_of

from fedcore.codec import Encoding
from fedcore.codec.scaling.widths import FIRST_SCALE
from fedcore.state import ModelState
from server_app.runs.app.messages import Replies

ALL = [1, 2, 3, 4]
MODEL = ModelState.from_arrays({"weight": np.zeros((300, 7), np.float32)})
LARGE = 320 * FIRST_SCALE
"""With 10 examples of 64 it is 50 times the first scale: it fits the next one even if the sum reads a rung too low."""


def give(site: Site, large: Sequence[int] = (2,), by: float = LARGE) -> None:
    for member in site.members.values():
        member.local = Local(by=by if member.id in large else 1.0, examples=10)


async def exchange_of(members: Sequence[Member]) -> None:
    """These take the open task and carry it out."""
    await asyncio.gather(*(member.enter() for member in members))
    await asyncio.gather(*(member.secure() for member in members))


async def leaves(member: Member, before: str) -> None:
    """It takes the open task, and leaves before this step."""
    await member.enter()
    await member.secure(until=before)
    await member.withdraw()


def scale_of(member: Member) -> float:
    assert member.task is not None
    assert isinstance(member.task.encoding, Encoding)
    return member.task.encoding.scales[0]


async def test_who_was_not_in_the_sum_is_not_asked(here: Site) -> None:
    """It is back, but a sum with it would tell its update: the others would refuse to sign."""
    give(here)
    run, app = await here.begin()
    asked = asyncio.create_task(app.exchange(MODEL, ALL))
    three = [here.members[client] for client in (1, 2, 3)]
    await asyncio.gather(exchange_of(three), leaves(here.members[4], "upload"))
    await exchange_of(three)
    answer = await asked
    assert isinstance(answer, Replies)
    assert answer.replies[0].examples == 30
    started = events_of(await here.finish(run, app), "exchange")
    assert [(len(event["cohort"]), event["quorum"]) for event in started] == [(4, 3), (3, 3)]


async def test_one_that_is_lost_in_the_repeat_costs_an_attempt(here: Site) -> None:
    """Whether clients agree to a sum of others after that is for them to say."""
    give(here)
    run, app = await here.begin({"max-attempts": 2})
    asked = asyncio.create_task(app.exchange(MODEL, ALL))
    members = list(here.members.values())
    await exchange_of(members)
    with pytest.raises(Failure, match=r"round-failed|stale-step"):  # it ends as the others send, or just before
        await asyncio.gather(exchange_of(members[:3]), leaves(members[3], "upload"))
    await exchange_of(members)
    assert isinstance(await asked, Replies)
    started = events_of(await here.finish(run, app), "exchange")
    assert [event["quorum"] for event in started] == [3, 4, 3]


async def test_the_same_clients_are_asked_again_with_wider_scales(here: Site) -> None:
    """However few attempts a run has."""
    give(here)
    run, app = await here.begin({"max-attempts": 1})
    asked = asyncio.create_task(app.exchange(MODEL, ALL))
    members, scales = list(here.members.values()), []
    for _ in range(2):
        await exchange_of(members)
        scales.append(scale_of(members[0]))
    answer = await asked
    assert isinstance(answer, Replies)
    np.testing.assert_allclose(answer.replies[0].model()["weight"], (LARGE + 3) / 4, rtol=1e-6)
    assert scales[1] >= 64 * scales[0]
    ended = await here.finish(run, app)
    [repeat] = events_of(ended, "exchange-repeated")
    assert (repeat["exchange"], repeat["large"], repeat["survivors"]) == (1, 1, 4)
    assert events_of(ended, "exchange-failed") == []
    started, (done,) = events_of(ended, "exchange"), events_of(ended, "exchange-done")
    assert [(event["attempt"], event["quorum"]) for event in started] == [(1, 3), (2, 4)]
    assert (done["exchange"], done["clipped"], done["lost_norm"]) == (2, 0, 0.0)


@pytest.mark.parametrize("clipping", ["repeat", "fail", "warn"])
async def test_a_sum_that_is_mostly_rounding_is_asked_for_again_in_wider_fields(here: Site, clipping: str) -> None:
    """A step of a thousandth of the one before, at its scale; the model that the app gets is the exact one."""
    run, app = await here.begin({"max-attempts": 1, "clipping": clipping})
    members, bits = list(here.members.values()), []
    for by, exchanges in ((1.0, 1), (1e-4, 2)):
        give(here, large=(), by=by)
        for member in members:
            member.local = Local(by=by, examples=10)
        asked = asyncio.create_task(app.exchange(MODEL, ALL))
        for _ in range(exchanges):
            await exchange_of(members)
            task = members[0].task
            assert task is not None
            assert isinstance(task.encoding, Encoding)
            bits.append(task.encoding.field_bits)
        answer = await asked
        assert isinstance(answer, Replies)
        np.testing.assert_allclose(answer.replies[0].model()["weight"], by, rtol=1e-3)
    assert bits == [32 if clipping == "repeat" else 64, 16, 32]
    [repeat] = events_of(await here.finish(run, app), "exchange-repeated")
    assert (repeat["coarse"], repeat["large"], repeat["survivors"]) == ("weight", 0, 4)
