"""When the owner lets the machine train: decisions on readings, the reader of the machine, and what the agent does."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from typing import Any

import psutil
import pytest
from support.agents import agent_running, until

from client_app.exchange.client import Client
from client_app.exchange.eligibility import Eligibility, MachineMonitor, NotEligible, Reading, why_not
from fedcore.codec import Encoding
from fedcore.errors import KitError
from fedcore.federation.eligibility import EligibilityRules, Hours
from fedcore.wire.uploads import WithdrawalReason
from tests.support.raising import raises

Script = Any  # support.scripted.Scripted
ON_POWER = EligibilityRules(on_power_only=True)
NIGHT = EligibilityRules(train_hours=(Hours.parse("22:00-06:00"),))


# --- the rules


@pytest.mark.parametrize(
    ("hours", "inside", "outside"),
    [
        ("22:00-06:00", ["22:00", "23:59", "00:00", "05:59"], ["06:00", "12:00", "21:59"]),
        ("08:30-17:00", ["08:30", "12:00", "16:59"], ["08:29", "17:00", "00:00", "23:59"]),
        ("00:00-24:00", ["00:00", "12:00", "23:59"], []),
        ("18:00-24:00", ["18:00", "23:59"], ["00:00", "17:59"]),
        ("23:00-00:00", ["23:00", "23:59"], ["00:00", "22:59"]),
    ],
)
def test_hours_hold_their_start_and_not_their_end(hours: str, inside: list[str], outside: list[str]) -> None:
    parsed = Hours.parse(hours)
    assert str(parsed) == hours
    assert [time for time in inside if minute(time) not in parsed] == []
    assert [time for time in outside if minute(time) in parsed] == []


def minute(text: str) -> int:
    hour, rest = text.split(":")
    return 60 * int(hour) + int(rest)


@pytest.mark.parametrize(
    "text", ["", "22-06", "22:00", "25:00-06:00", "22:60-06:00", "24:00-06:00", "08:00-24:01", "8:00-9:00", "1:1-2:2 "]
)
def test_hours_that_are_none_are_refused(text: str) -> None:
    with raises(KitError, check="hours", match=re.escape(repr(text))):
        Hours.parse(text)


def test_hours_without_a_minute_are_refused() -> None:
    with raises(KitError, check="empty-hours"):
        Hours.parse("08:00-08:00")


@pytest.mark.parametrize("load", [0.0, -0.1, 1.1, float("nan")])
def test_a_load_that_is_no_share_is_refused(load: float) -> None:
    with pytest.raises(KitError, match="idle-load"):
        EligibilityRules(idle_load=load)


# --- the decision


@pytest.mark.parametrize(
    ("rules", "reading", "reason"),
    [
        (EligibilityRules(), Reading(minute=700, on_power=False, load=1.0), ""),
        (NIGHT, Reading(minute=minute("23:00")), ""),
        (NIGHT, Reading(minute=minute("12:00")), "outside 22:00-06:00"),
        (ON_POWER, Reading(minute=0, on_power=True), ""),
        (ON_POWER, Reading(minute=0, on_power=False), "on battery"),
        (EligibilityRules(idle_only=True), Reading(minute=0, load=0.25), ""),
        (EligibilityRules(idle_only=True), Reading(minute=0, load=0.26), "other processes use more than 25% of the"),
        (EligibilityRules(idle_only=True, idle_load=0.5), Reading(minute=0, load=0.26), ""),
        (replace(NIGHT, on_power_only=True), Reading(minute=720, on_power=False), "outside 22:00-06:00"),
        (replace(NIGHT, on_power_only=True), Reading(minute=0, on_power=False), "on battery"),
    ],
)
def test_the_first_rule_in_the_way_is_named(rules: EligibilityRules, reading: Reading, reason: str) -> None:
    found = why_not(rules, reading)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


def test_any_of_several_hours_will_do() -> None:
    rules = EligibilityRules(train_hours=(Hours.parse("12:00-13:00"), Hours.parse("22:00-06:00")))
    assert [why_not(rules, Reading(minute=minute(at))) for at in ("12:30", "01:00")] == ["", ""]
    assert why_not(rules, Reading(minute=minute("09:00"))) == "outside 12:00-13:00, 22:00-06:00"


# --- the reader


def test_a_machine_without_a_battery_is_on_power(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine may have one: what psutil says is given, in its own type."""
    for battery, plugged in (
        (None, True),
        (battery_of(True), True),
        (battery_of(False), False),
        (battery_of(None), False),
    ):
        monkeypatch.setattr(psutil, "sensors_battery", lambda battery=battery: battery, raising=False)
        assert MachineMonitor(ON_POWER).read().on_power is plugged
    monkeypatch.delattr(psutil, "sensors_battery")
    assert MachineMonitor(ON_POWER).read().on_power, "a platform whose batteries psutil does not know"


def battery_of(plugged: bool | None) -> Any:
    from collections import namedtuple

    return namedtuple("sbattery", "percent secsleft power_plugged")(50.0, 3600, plugged)


def test_the_clock_is_the_local_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "XYZ-3:00")
    try:
        time.tzset()
        expected = (time.time() / 60 + 180) % 1440
        assert abs(MachineMonitor(NIGHT).read().minute - expected) % 1439 < 1.5
    finally:
        monkeypatch.undo()
        time.tzset()


# --- what the agent does


class Given:
    """Readings that the test decides."""

    def __init__(self) -> None:
        self.reading = Reading(minute=0, on_power=False)

    def __call__(self) -> Reading:
        return self.reading

    def plug_in(self, plugged: bool = True) -> None:
        self.reading = replace(self.reading, on_power=plugged)


def restricted(client: Client, given: Given) -> Client:
    return replace(client, eligibility=Eligibility(rules=ON_POWER, read=given, seconds=0.02))


async def test_says_at_once_whether_it_may_train(script: Script, client: Client, log: StringIO) -> None:
    given = Given()
    script.heartbeat_seconds = 600.0
    async with script.serving(), agent_running(restricted(client, given)) as running:
        await until(lambda: script.polls, running)
        assert b'"eligible":false' in script.bodies["join"]
        for plugged in (True, False):
            given.plug_in(plugged)
            expected = {"run": "", "exchange": 0, "eligible": plugged, "stopping": False}
            await until(lambda: script.heartbeats[-1:] == [expected], running)  # noqa: B023 - awaited in the loop
    said = [line.split("eligibility", 1)[1].strip() for line in log.getvalue().splitlines() if "eligibility" in line]
    assert said == ["not eligible: on battery", "eligible again after 0:00:00", "not eligible: on battery"]


async def test_a_task_that_comes_nevertheless_is_left(script: Script, client: Client) -> None:
    """The server chose the client before it heard that it may not."""
    script.tasks.append(script.task)
    async with script.serving(), agent_running(restricted(client, Given())) as running:
        await until(lambda: script.withdrawals, running)
    assert [withdrawal.reason for withdrawal in script.withdrawals] == [WithdrawalReason.NOT_ELIGIBLE]
    assert client.work.calls == 0
    assert not [request for request in script.requests if request.startswith("PUT")]


@pytest.mark.parametrize("aggregation", ["secure", "plain"])
async def test_unplugged_while_it_trains_it_leaves_and_comes_back(
    script: Script,
    client: Client,
    allow: Callable[..., Client],
    make_task: Callable[..., Any],
    log: StringIO,
    aggregation: str,
) -> None:
    given = Given()
    given.plug_in()
    client.work.goes_on = asyncio.Event()
    plain = {"aggregation": "plain", "protection": None, "encoding": None} if aggregation == "plain" else {}
    script.task = make_task(**plain)
    script.tasks.append(script.task)
    owner = restricted(allow(client, allow_plain=True), given)
    async with script.serving(), agent_running(owner) as running:
        await until(lambda: client.work.calls, running)
        given.plug_in(False)
        await until(lambda: script.withdrawals, running)
        [withdrawal] = script.withdrawals
        assert (withdrawal.reason, withdrawal.check) == (WithdrawalReason.NOT_ELIGIBLE, "")
        assert client.work.cancelled, "nothing else stops user code"
        assert "PUT manifest" not in script.requests
        await until(lambda: client.ledger.open_exchange is None, running)
        given.plug_in()
        await until(lambda: owner.eligibility.holds, running)  # or else it would leave the next one too
        client.work.goes_on.set()
        script.go_on(make_task(exchange=2, **plain))
        script.tasks.append(script.task)
        await until(lambda: "PUT manifest" in script.requests, running)
    assert "left the exchange, not eligible: on battery" in log.getvalue()
    assert "error" not in log.getvalue()


async def test_unplugged_in_silence_it_says_so_after_the_exchange(
    script: Script, client: Client, allow: Callable[..., Client]
) -> None:
    given = Given()
    given.plug_in()
    client.work.goes_on = asyncio.Event()
    assert isinstance(script.task.encoding, Encoding)
    script.task = script.task.model_copy(update={"encoding": replace(script.task.encoding, failures=1)})
    script.tasks.append(script.task)
    owner = restricted(allow(client, report_failures=False), given)
    async with script.serving(), agent_running(owner) as running:
        await until(lambda: client.work.calls, running)
        given.plug_in(False)
        await until(lambda: script.heartbeats and not script.heartbeats[-1]["eligible"], running)
    assert (script.decoded.examples, script.decoded.failures) == (30, 1)
    assert {beat["eligible"] for beat in script.heartbeats if beat["exchange"]} <= {True}
    assert script.withdrawals == []


async def test_unplugged_after_its_upload_it_stays_to_the_end(script: Script, client: Client) -> None:
    given = Given()
    given.plug_in()

    client = restricted(client, given)
    take = script.put_manifest

    def unplug(body: bytes) -> None:
        given.plug_in(False)
        take(body)

    script.put_manifest = unplug
    shown = script.survivors_or_not_yet
    script.survivors_or_not_yet = lambda: None if client.eligibility.holds else shown()  # until the agent has noticed
    script.tasks.append(script.task)
    async with script.serving(), agent_running(client) as running:
        await until(lambda: script.decoded and client.ledger.open_exchange is None, running)
    assert not client.eligibility.holds
    assert script.withdrawals == []


async def test_the_reason_may_change_while_it_waits() -> None:
    now = [0.0]
    given = Given()
    both = EligibilityRules(train_hours=NIGHT.train_hours, on_power_only=True)
    eligibility = Eligibility(rules=both, read=given, clock=lambda: now[0])
    assert await eligibility.update() == "not eligible: on battery"
    assert await eligibility.update() == ""
    given.reading = Reading(minute=minute("12:00"))
    now[0] = 3600.0
    assert await eligibility.update() == "not eligible for 1:00:00, now: outside 22:00-06:00"
    with pytest.raises(NotEligible, match="22:00-06:00"):
        eligibility.check()
    given.reading = Reading(minute=0)
    now[0] = 36000.0
    assert await eligibility.update() == "eligible again after 10:00:00"
    eligibility.check()
