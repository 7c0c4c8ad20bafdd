"""A device that does not serve ends no exchange."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from client_app import exchange as exchange_module
from client_app.exchange import Client, take_part
from fedcore.codec import DeviceVector

Script = Any  # support.scripted.Scripted
STEPS = ["PUT advertisement", "PUT key-shares", "PUT part 0", "PUT manifest", "PUT consistency", "PUT unmask"]


class Broken(DeviceVector):
    """A vector without memory: whatever needs the device fails."""

    def __init__(self, count: int) -> None:
        self.count, self.closed = count, 0

    def close(self) -> None:
        self.closed += 1


async def take(script: Script, client: Client) -> list[str]:
    async with script.serving():
        await take_part(script.task, client)
    return [request for request in script.requests if request.startswith("PUT")]


async def test_a_device_that_fails_is_replaced_by_the_host(
    script: Script, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Broken] = []

    def open_vector(count: int) -> Broken:
        opened.append(Broken(count))
        return opened[-1]

    monkeypatch.setattr(exchange_module, "open_vector", open_vector)
    assert sorted(await take(script, client)) == sorted(STEPS)
    assert [vector.count for vector in opened] == [script.encoding().words]
    assert [vector.closed for vector in opened] == [1]


async def test_a_device_that_cannot_be_opened_is_replaced_by_the_host(
    script: Script, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_vector(count: int) -> None:
        raise RuntimeError("the driver is too old")

    monkeypatch.setattr(exchange_module, "open_vector", open_vector)
    said: list[str] = []
    output = replace(client.output)
    monkeypatch.setattr(type(output), "warning", lambda _self, _stage, text, **_fields: said.append(text))
    assert sorted(await take(script, replace(client, output=output))) == sorted(STEPS)
    assert said == ["the device does not serve, RuntimeError: the driver is too old"]
