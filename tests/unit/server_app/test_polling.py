"""A poll whose connection ends: at once, and in the moment in which it has its answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from server_app.polling import HungUp, while_connected


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
