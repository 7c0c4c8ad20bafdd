"""A device that does not serve ends no exchange, whenever it is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the extra gpu is not installed")

from support.lost_device import LostDevice

from client_app.exchange import exchange as exchange_module
from client_app.exchange import update_encoder
from client_app.exchange.client import Client
from client_app.exchange.exchange import take_part
from fedcore.state import ModelState

Script = Any  # support.scripted.Scripted
STEPS = ["PUT advertisement", "PUT key-shares", "PUT manifest", "PUT consistency", "PUT unmask"]
PART = 2000
"""Bytes of a part, so that a small model has several."""


async def take(script: Script, client: Client, card: LostDevice, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Take part with the device; returns what the owner reads of the encoding."""
    monkeypatch.setattr(update_encoder, "open_vector", card.open)
    monkeypatch.setattr(exchange_module, "PART_BYTES", PART)
    said: list[str] = []
    output = type(client.output)
    monkeypatch.setattr(output, "warning", lambda _self, stage, text, **_fields: said.append(f"{stage}: {text}"))
    async with script.serving():
        await take_part(script.task, client)
    sent = [request for request in script.requests if request.startswith("PUT")]
    parts = [f"PUT part {number}" for number in range(-(-script.encoding().words * 8 // PART))]
    assert len(parts) > 3
    assert sorted(sent) == sorted(STEPS + parts)
    # The mean of one client's updates of one and of three others' of two: a word of another vector would show.
    base = ModelState.open(script.model)
    for name, value in script.decoded.state.items():
        np.testing.assert_allclose(value - base[name], 1.75, atol=0.01)
    return said


@pytest.mark.parametrize(("fails_at", "left"), [("open", 0), ("apply_masks", 2)])
async def test_what_a_device_fails_to_make_the_processor_makes(
    script: Script, client: Client, monkeypatch: pytest.MonkeyPatch, fails_at: str, left: int
) -> None:
    said = await take(script, client, LostDevice(fails_at, left), monkeypatch)
    assert said[0].startswith("encode: the device failed")


async def test_a_device_that_serves_is_given_back(
    script: Script, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = LostDevice("")
    assert not await take(script, client, card, monkeypatch)
    assert len(card.opened) == card.given_back == 1


async def test_an_owner_keeps_the_device_for_the_training(
    script: Script, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = LostDevice("open")
    assert not await take(script, replace(client, gpu_uploads=False), card, monkeypatch)
