"""A client whose owner demands differential privacy: it takes part while the noise is enough, and refuses by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.encodings import encoding_from_json, encoding_to_json
from support.privacy import CODEC, plan

from client_app.agent import Agent, Pauses
from client_app.exchange import Client, take_part
from client_app.ledger import LEDGER_FILE
from fedcore.codec import PrivateEncoding, private_encoding
from fedcore.privacy import Accountant
from fedcore.state import ModelState
from fedcore.wire import Task, WithdrawalReason

Script = Any  # support.scripted.Scripted
DELTA = 1e-5


def noised(script: Script, **changes: Any) -> PrivateEncoding:
    """The honest encoding of the script's exchange: noise multiplier 2, shared among the three that are sure."""
    settings = {"noise_clients": 3, **changes}
    layout = ModelState.open(script.model).layout
    return private_encoding(CODEC, layout, 4, plan=plan(dp_noise_multiplier=2.0), **settings)


def cost(*encodings: PrivateEncoding) -> float:
    return Accountant(encoding.release for encoding in encodings).epsilon(DELTA)


async def offer(script: Script, client: Client) -> None:
    async with script.serving():
        await Agent(client, Pauses(refusal=0.0, farewell=60.0))._take(script.task)


def refusal(script: Script) -> tuple[str, WithdrawalReason]:
    [withdrawal] = script.withdrawals
    return withdrawal.check, withdrawal.reason


@pytest.fixture
def demanding(client: Client, allow: Callable[..., Client]) -> Callable[[float], Client]:
    """The client, with a bound on epsilon in its policy."""
    return lambda max_epsilon: allow(client, max_epsilon=max_epsilon)


async def test_a_noised_exchange_goes_into_the_sum_and_the_ledger(
    script: Script, demanding: Callable[[float], Client], make_task: Callable[..., Task], tmp_path: Path
) -> None:
    encoding = noised(script)
    script.task = make_task(encoding=encoding)
    client = demanding(8.0)
    async with script.serving():
        await take_part(script.task, client)
    assert script.decoded.examples == 4
    assert script.decoded.metrics == {}, "metrics of training have no noise, so they stay here"
    noise = script.decoded.state["weight"] - ModelState.open(script.model)["weight"]
    # Four shares of the variance, over four clients each.
    expected = np.sqrt(encoding.release.variance * 4) * encoding.step / 4
    assert np.std(noise) == pytest.approx(expected, rel=0.15)
    assert client.ledger.spent.epsilon(DELTA) == cost(encoding)
    lines = [json.loads(line) for line in (tmp_path / "state" / LEDGER_FILE).read_text().splitlines()]
    assert [line["event"] for line in lines] == ["entered", "spent", "unmasked"]
    assert lines[1]["release"] == asdict(encoding.release)


async def test_it_is_spent_before_the_update_leaves(
    script: Script, demanding: Callable[[float], Client], make_task: Callable[..., Task]
) -> None:
    encoding = noised(script)
    script.task = make_task(encoding=encoding)
    client = demanding(8.0)
    spent: list[float] = []
    original = script.take

    async def watched(route: str, body: bytes) -> Any:
        if route in ("advertisement", "key-shares", "manifest"):
            spent.append(client.ledger.spent.epsilon(DELTA))
        return await original(route, body)

    script.take = watched
    async with script.serving():
        await take_part(script.task, client)
    assert spent == [0, 0, cost(encoding)]


async def test_a_sum_without_noise_is_refused(script: Script, demanding: Callable[[float], Client]) -> None:
    await offer(script, demanding(8.0))
    assert refusal(script) == ("privacy-required", WithdrawalReason.POLICY)


async def test_a_plain_exchange_is_refused(
    script: Script, demanding: Callable[[float], Client], make_task: Callable[..., Task]
) -> None:
    script.task = make_task(aggregation="plain", encoding=None)
    await offer(script, demanding(8.0))
    assert refusal(script) == ("plain-not-allowed", WithdrawalReason.POLICY)


@pytest.mark.parametrize("lie", [{"variance": 1.0}, {"shares": 1}])
async def test_a_server_that_announces_too_little_noise(
    script: Script, demanding: Callable[[float], Client], make_task: Callable[..., Task], lie: dict[str, Any]
) -> None:
    honest = noised(script)
    lying = replace(honest, release=replace(honest.release, **lie))
    script.task = make_task(encoding=lying)
    client = demanding(cost(honest) * 1.01)
    await offer(script, client)
    assert refusal(script) == ("too-little-noise", WithdrawalReason.POLICY)
    assert client.work.calls == 0
    assert client.ledger.spent.epsilon(DELTA) == 0


@pytest.mark.parametrize("max_epsilon", [0.0, 100.0])
async def test_noise_that_counts_on_clients_that_may_drop_out(
    script: Script, demanding: Callable[[float], Client], make_task: Callable[..., Task], max_epsilon: float
) -> None:
    """A sum may be made of three: a server that shares the noise out among four promises more than it keeps."""
    script.task = make_task(encoding=noised(script, noise_clients=4))
    await offer(script, demanding(max_epsilon))
    assert refusal(script) == ("noise-shares", WithdrawalReason.PROTOCOL_VIOLATION)


async def test_the_budget_holds_for_all_runs_together(
    script: Script, demanding: Callable[[float], Client], make_task: Callable[..., Task]
) -> None:
    encoding = noised(script)
    client = demanding(cost(encoding) * 1.01)
    client.ledger.spend("an earlier run", 7, encoding.release)
    script.task = make_task(encoding=encoding)
    await offer(script, client)
    assert refusal(script) == ("privacy-budget", WithdrawalReason.POLICY)
    assert client.ledger.spent.epsilon(DELTA) == cost(encoding)


async def test_without_a_demand_the_account_is_kept_all_the_same(
    script: Script, client: Client, make_task: Callable[..., Task]
) -> None:
    encoding = noised(script)
    script.task = make_task(encoding=encoding)
    await offer(script, client)
    assert not script.withdrawals
    assert client.ledger.spent.epsilon(DELTA) == cost(encoding)


async def test_what_was_announced_is_what_is_encoded(script: Script) -> None:
    assert encoding_from_json(encoding_to_json(noised(script))) == noised(script)


async def test_noise_that_is_none_is_refused(script: Script, client: Client, make_task: Callable[..., Task]) -> None:
    task = encoding_to_json(noised(script))
    script.task = make_task(encoding={**task, "release": {**task["release"], "variance": 0.0}})
    await offer(script, client)
    assert refusal(script)[0] == "encoding-refused"
