"""Updates that exceed the scales of an exchange: who is asked again, how, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from support.members import Failure, Local, Member
from support.serverside import Site, events_of

from fedcore.codec import Encoding
from fedcore.codec.widths import FIRST_SCALE
from fedcore.state import ModelState
from server_app.runs.app.messages import Replies

ALL = [1, 2, 3, 4]
MODEL = ModelState.from_arrays({"weight": np.zeros((300, 7), np.float32)})
LARGE = 640 * FIRST_SCALE
"""With 10 examples of 64 it is 100 times the first scale."""


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
