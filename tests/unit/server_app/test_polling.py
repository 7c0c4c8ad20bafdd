"""A poll whose connection ends: at once, and in the moment in which it has its answer."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from starlette.requests import Request

from server_app.http.authentication import ClientCaller
from server_app.polling import HungUp, while_connected
from server_app.routes.access import long_poll_of


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


@pytest.mark.parametrize(("headers", "seconds"), [([], 25.0), ([(b"x-forwarded-for", b"192.0.2.1")], 10.0)])
async def test_a_poll_that_a_proxy_brought_ends_sooner(headers: list[tuple[bytes, bytes]], seconds: float) -> None:
    """Our nginx takes a server that is silent for 15 s for a frozen one."""
    request, nothing = Request({"type": "http", "headers": headers}), cast(Any, None)
    caller = ClientCaller(client_id=1, content_sha256=bytes(32))
    assert (await long_poll_of(request, nothing, caller, 25.0)).seconds == seconds
