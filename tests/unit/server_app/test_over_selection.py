"""More clients than the strategy wants are asked, and nobody waits for the slow ones."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from support.members import Failure, Member
from support.serverside import Site, events_of, until

from fedcore.state import ModelState
from fedcore.system.concurrency import end
from fedcore.wire.events import NOT_NEEDED
from server_app.runs.app.messages import Replies

EXTRA = {"over-selection": 0.3}


async def from_upload(member: Member) -> None:
    """The rest of an exchange, for which nobody waits who has not received the shares."""
    for step in (member.upload, member.sign, member.unmask):
        await step()


async def test_the_first_that_were_wanted_make_the_sum(here: Site, model: ModelState) -> None:
    """The clock stands still: whoever waited for client 4 would wait for ever."""
    run, app = await here.begin(EXTRA)
    asked = asyncio.create_task(app.exchange(model, [1, 2, 3]))
    members = await here.enter_all()
    assert members[0].task is not None
    assert members[0].task.cohort == [1, 2, 3, 4], "one of three, and a fraction is rounded up"
    slow = members[3]
    await asyncio.gather(*(member.secure(until="upload") for member in members))
    await asyncio.gather(*map(from_upload, members[:3]))
    answer = await asked
    assert isinstance(answer, Replies)
    np.testing.assert_allclose(answer.replies[0].model()["weight"], model["weight"] + 1.0, atol=1e-5)  # type: ignore[union-attr]
    with pytest.raises(Failure, match="not-needed"):
        await slow.upload()
    ended = await here.finish(run, app)
    with pytest.raises(Failure, match="not-needed"):
        await slow.get("survivors")
    assert events_of(ended, "exchange-done")[0]["survivors"] == ["client-1", "client-2", "client-3"]
    (dropped,) = events_of(ended, "dropped")
    assert (dropped["client"], dropped["stage"]) == ("client-4", "input")
    assert dropped["reason"] == NOT_NEEDED


async def test_the_extra_client_stands_in_for_one_that_leaves(here: Site, model: ModelState) -> None:
    run, app = await here.begin(EXTRA)
    asked = asyncio.create_task(app.exchange(model, [1, 2, 3]))
    members = await here.enter_all()

    await asyncio.gather(*(member.secure(until="upload") for member in members))
    await members[1].withdraw()
    await asyncio.gather(*(from_upload(member) for member in members if member.id != 2))
    assert isinstance(await asked, Replies)
    ended = await here.finish(run, app)
    assert events_of(ended, "exchange-done")[0]["survivors"] == ["client-1", "client-3", "client-4"]


async def test_a_query_waits_for_everybody_it_asks(here: Site) -> None:
    _, app = await here.begin(EXTRA)
    asked = asyncio.create_task(app.exchange(None, [1, 2, 3], message_type="query.sums"))
    await until(lambda: here.application.queue.exchange is not None)
    exchange = here.application.queue.exchange
    assert exchange is not None
    assert (exchange.task.cohort, exchange.context.enough) == ([1, 2, 3], 0)
    await end(asked)
