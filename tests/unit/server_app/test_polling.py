"""A poll whose connection ends: at once, and in the moment in which it has its answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import Request

from server_app.http.authentication import ClientCaller
from server_app.members.presence import Presence
from server_app.polling import Bell, HungUp, while_connected
from server_app.routes.access import LongPoll, long_poll_of


async def test_the_end_of_the_connection_ends_what_waits() -> None:
    gone = asyncio.Event()
    gone.set()
    with pytest.raises(HungUp):
        async with while_connected(gone.wait):
            await asyncio.Event().wait()


async def test_a_connection_that_ends_with_its_answer_is_no_error() -> None:
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    async with while_connected(lambda: gone):
        gone.set_result(None)
    await asyncio.sleep(0)
    assert said == []


async def test_a_client_whose_poll_breaks_off_is_absent_at_once_and_heard_of_a_moment_ago() -> None:
    """A leader that no client reaches makes way only once none is there."""
    presence = Presence(clock=lambda: 10.0)
    services = cast(Any, SimpleNamespace(presence=presence, client_bell=Bell()))
    gone = asyncio.Event()
    request = Request({"type": "http", "headers": []}, cast(Any, gone.wait))
    presence.touch(1)
    answering = asyncio.create_task(LongPoll(request, services, 1, 60.0).respond(lambda: None))
    while not presence.online(-1.0):  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0)
    gone.set()
    await answering
    assert presence.online(6.0) == frozenset()
    assert presence.silent_for(1) == 0.0


@pytest.mark.parametrize(("headers", "seconds"), [([], 25.0), ([(b"x-forwarded-for", b"192.0.2.1")], 10.0)])
async def test_a_poll_that_a_proxy_brought_ends_sooner(headers: list[tuple[bytes, bytes]], seconds: float) -> None:
    """Our nginx takes a server that is silent for 15 s for a frozen one."""
    request, nothing = Request({"type": "http", "headers": headers}), cast(Any, None)
    caller = ClientCaller(client_id=1, content_sha256=bytes(32))
    assert (await long_poll_of(request, nothing, caller, 25.0)).seconds == seconds
