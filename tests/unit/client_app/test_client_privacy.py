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
from support.scripted import problem

from client_app.agent.agent import Agent, Pauses
from client_app.exchange.client import Client
from client_app.exchange.exchange import take_part
from client_app.records.ledger_entries import LEDGER_FILE
from fedcore.codec import CodecSettings, PrivateEncoding, first_encoding, private_encoding
from fedcore.codec.privacy import Accountant
from fedcore.federation.transcript import NoisedSum
from fedcore.run.settings import JobSettings
from fedcore.state import ModelState
from fedcore.wire.tasks import Task
from fedcore.wire.uploads import WithdrawalReason

Script = Any  # support.scripted.Scripted
DELTA = 1e-5


def noised(script: Script, **changes: Any) -> PrivateEncoding:
    """The honest encoding of the script's exchange: noise multiplier 2, shared among the two that are sure.

    Three make a sum, and one of them could help the server.
    """
    settings = {"noise_clients": 2, **changes}
    layout = ModelState.open(script.model).layout
    return private_encoding(CODEC, layout, 4, plan=plan(dp_noise_multiplier=2.0), **settings)


SETTINGS = JobSettings(clip_norm=1.0, dp_noise_multiplier=2.0).for_clients()


def cost(*encodings: PrivateEncoding) -> float:
    return Accountant(encoding.release for encoding in encodings).epsilon(DELTA)


async def offer(script: Script, client: Client) -> None:
    async with script.serving():
        await Agent(client, Pauses(refusal=0.0, farewell=60.0)).take_part(script.task)


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
    script.task = make_task(encoding=encoding, settings=SETTINGS)
    client = demanding(8.0)
    async with script.serving():
        await take_part(script.task, client)
    assert script.decoded.examples == 4
    assert script.decoded.metrics == {}, "metrics of training have no noise, so they stay here"
    noise = script.decoded.state["weight"] - ModelState.open(script.model)["weight"]
    # Four shares of the variance, over four clients each.
    expected = np.sqrt(encoding.release.variance * 4) * encoding.step / 4
    assert np.std(noise) == pytest.approx(expected, rel=0.15)
    assert client.ledger.spent().epsilon(DELTA) == cost(encoding)
    lines = [json.loads(line) for line in (tmp_path / "state" / LEDGER_FILE).read_text().splitlines()]
    assert [line["event"] for line in lines] == ["asked", "entered", "spent", "sent", "released", "unmasked"]
    assert lines[2]["attempt"]["release"] == asdict(encoding.release)


async def test_it_is_spent_before_the_update_leaves(
    script: Script, demanding: Callable[[float], Client], make_task: Callable[..., Task]
) -> None:
    encoding = noised(script)
    script.task = make_task(encoding=encoding, settings=SETTINGS)
    client = demanding(8.0)
    spent: list[float] = []
    original = script.take

    async def watched(route: str, body: bytes) -> Any:
        if route in ("advertisement", "key-shares", "manifest"):
            spent.append(client.ledger.spent().epsilon(DELTA))
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


@pytest.mark.parametrize(
    ("multiplier", "check"),
    [
        (2.0, ("encoding-off-settings", WithdrawalReason.PROTOCOL_VIOLATION)),
        (0.5, ("too-little-noise", WithdrawalReason.POLICY)),
    ],
)
async def test_a_server_that_announces_too_little_noise(
    script: Script,
    demanding: Callable[[float], Client],
    make_task: Callable[..., Task],
    multiplier: float,
    check: tuple[str, WithdrawalReason],
) -> None:
    """Less than the settings say is a lie; where they say so themselves, it is less than the owner demands."""
    honest = noised(script)
    variance = honest.release.variance / 16
    lying = replace(honest, release=replace(honest.release, variance=variance))
    script.task = make_task(encoding=lying, settings={**SETTINGS, "dp-noise-multiplier": multiplier})
    client = demanding(cost(honest) * 1.01)
    await offer(script, client)
    assert refusal(script) == check
    assert client.work.calls == 0
    assert client.ledger.spent().epsilon(DELTA) == 0


@pytest.mark.parametrize("lie", [{"clip": 2.0}, {"mechanism": "discrete-gaussian"}, {"scale": 2048}])
async def test_noise_of_another_kind_than_the_settings_say(
    script: Script, client: Client, make_task: Callable[..., Task], lie: dict[str, Any]
) -> None:
    encoding = encoding_to_json(noised(script))
    lying = {**encoding, **lie} if "clip" in lie else {**encoding, "release": {**encoding["release"], **lie}}
    script.task = make_task(encoding=lying, settings=SETTINGS)
    assert script.task.encoding is not None
    await offer(script, client)
    assert refusal(script)[0] == "encoding-off-settings"


async def test_a_sum_without_the_noise_of_the_settings(
    script: Script, client: Client, make_task: Callable[..., Task]
) -> None:
    settings = JobSettings(w_max=100, clip_norm=1.0, dp_noise_multiplier=2.0).for_clients()
    encoding = first_encoding(CodecSettings(w_max=100, clip_norm=1.0), ModelState.open(script.model).layout, 4)
    script.task = make_task(settings=settings, encoding=encoding)
    await offer(script, client)
    assert refusal(script)[0] == "encoding-off-settings"


@pytest.mark.parametrize("max_epsilon", [0.0, 100.0])
async def test_noise_that_counts_on_clients_that_may_drop_out(
    script: Script, demanding: Callable[[float], Client], make_task: Callable[..., Task], max_epsilon: float
) -> None:
    """Three make a sum, and the masks withstand one of them that helps the server: two shares are sure."""
    script.task = make_task(encoding=noised(script, noise_clients=3), settings=SETTINGS)
    await offer(script, demanding(max_epsilon))
    assert refusal(script) == ("noise-shares", WithdrawalReason.PROTOCOL_VIOLATION)


async def test_the_budget_holds_for_all_runs_together(
    script: Script, demanding: Callable[[float], Client], make_task: Callable[..., Task]
) -> None:
    encoding = noised(script)
    client = demanding(cost(encoding) * 1.01)
    client.ledger.spend(NoisedSum.of(make_task(run="an earlier run", exchange=7), encoding.release))
    script.task = make_task(encoding=encoding, settings=SETTINGS)
    await offer(script, client)
    assert refusal(script) == ("privacy-budget", WithdrawalReason.POLICY)
    assert client.ledger.spent().epsilon(DELTA) == cost(encoding)


async def test_without_a_demand_the_account_is_kept_all_the_same(
    script: Script, client: Client, make_task: Callable[..., Task]
) -> None:
    encoding = noised(script)
    script.task = make_task(encoding=encoding, settings=SETTINGS)
    await offer(script, client)
    assert not script.withdrawals
    assert client.ledger.spent().epsilon(DELTA) == cost(encoding)


async def test_what_was_announced_is_what_is_encoded(script: Script) -> None:
    assert encoding_from_json(encoding_to_json(noised(script))) == noised(script)


async def test_noise_that_is_none_is_refused(script: Script, client: Client, make_task: Callable[..., Task]) -> None:
    task = encoding_to_json(noised(script))
    script.task = make_task(encoding={**task, "release": {**task["release"], "variance": 0.0}})
    await offer(script, client)
    assert refusal(script)[0] == "encoding-refused"


class TestReturns:
    """Epsilon of attempts that failed after this client's update had left, as its server says."""

    @pytest.fixture
    def encoding(self, script: Script) -> PrivateEncoding:
        return noised(script)

    @pytest.fixture
    def poor(self, demanding: Callable[[float], Client], encoding: PrivateEncoding) -> Client:
        """Its owner allows one such sum."""
        return demanding(cost(encoding) * 1.01)

    @pytest.fixture
    def again(self, script: Script, make_task: Callable[..., Task], encoding: PrivateEncoding) -> Callable[..., Task]:
        """One more exchange of the same run."""

        def offered(exchange: int, **changes: Any) -> Task:
            script.go_on(make_task(exchange=exchange, encoding=encoding, settings=SETTINGS, **changes))
            return script.task

        return offered

    async def fail_after_upload(self, script: Script, client: Client) -> None:
        script.lies["survivors"] = lambda _: problem(409, "round-failed", "too few clients are left")
        await offer(script, client)
        script.lies.clear()
        assert client.ledger.attempts, "the update has left, so it counts"

    async def test_the_retry_of_the_last_affordable_exchange(
        self, script: Script, poor: Client, again: Callable[..., Task], encoding: PrivateEncoding
    ) -> None:
        again(1)
        await self.fail_after_upload(script, poor)
        again(2)
        await offer(script, poor)
        assert not script.withdrawals
        assert script.decoded is not None
        assert [attempt.exchange for attempt in poor.ledger.attempts] == [2]
        assert poor.ledger.spent().epsilon(DELTA) == cost(encoding)
        again(3)
        await offer(script, poor)
        assert refusal(script) == ("privacy-budget", WithdrawalReason.POLICY)

    async def test_a_server_that_unmasked_it_with_the_others(
        self, script: Script, poor: Client, again: Callable[..., Task], encoding: PrivateEncoding
    ) -> None:
        """It says to this client that the attempt failed, and has its sum. The others go on only with its record."""
        again(1)
        await self.fail_after_upload(script, poor)
        for peer in script.peers("consistency").values():
            script.round.receive_consistency(peer.sign_survivors(script.round.survivors()))
        script.round.close_stage()
        script.keep_record()
        again(2)
        await offer(script, poor)
        assert refusal(script) == ("privacy-budget", WithdrawalReason.POLICY)
        assert not [request for request in script.requests if request == "PUT manifest"][1:], "nothing more has left"
        assert poor.ledger.spent().epsilon(DELTA) == cost(encoding)

    async def test_a_retry_without_those_of_the_attempt(
        self,
        script: Script,
        poor: Client,
        again: Callable[..., Task],
        make_task: Callable[..., Task],
        encoding: PrivateEncoding,
    ) -> None:
        """Of seven, three colluding ones may have helped to unmask the attempt; three in the retry prove nothing."""
        strangers = make_task(exchange=1, cohort=[1, 4, 5, 6, 7, 8, 9], quorum=5)
        attempt = NoisedSum.of(strangers, encoding.release)
        poor.ledger.spend(attempt)
        again(2)
        await offer(script, poor)
        assert refusal(script) == ("privacy-budget", WithdrawalReason.POLICY)
        assert "PUT key-shares" not in script.requests, "refused before anything is shared"
        assert poor.ledger.attempts == (attempt,)

    async def test_an_attempt_of_another_run_waits_for_the_transcript(
        self,
        script: Script,
        poor: Client,
        again: Callable[..., Task],
        make_task: Callable[..., Task],
        encoding: PrivateEncoding,
    ) -> None:
        """Who takes part in this run may still be asked for signatures in the other."""
        poor.ledger.spend(NoisedSum.of(make_task(run="another"), encoding.release))
        again(2)
        await offer(script, poor)
        assert refusal(script) == ("privacy-budget", WithdrawalReason.POLICY)
        assert "PUT advertisement" not in script.requests

    async def test_it_is_returned_once_the_transcript_shows_who_went_on(
        self,
        script: Script,
        demanding: Callable[[float], Client],
        again: Callable[..., Task],
        make_task: Callable[..., Task],
        encoding: PrivateEncoding,
    ) -> None:
        """Those who are there may still sign the other run's exchange; those who signed this one may not."""
        rich = demanding(cost(encoding, encoding, encoding) * 1.01)
        rich.ledger.spend(NoisedSum.of(make_task(run="another"), encoding.release))
        again(2)
        await offer(script, rich)
        assert [attempt.run for attempt in rich.ledger.attempts] == ["another", script.task.run]
        again(3)
        await offer(script, rich)
        assert [(attempt.run, attempt.exchange) for attempt in rich.ledger.attempts] == [
            (script.task.run, 2),
            (script.task.run, 3),
        ]
