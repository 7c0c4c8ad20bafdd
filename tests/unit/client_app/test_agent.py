"""The agent's loop against a scripted server that comes, goes and errs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from fastapi import Response
from support.agents import FAST, agent_running, until

from client_app.agent import Agent
from client_app.exchange import Client
from client_app.output import Output
from fedcore.errors import ProtocolViolation, Unauthorized
from fedcore.wire import Task, WithdrawalReason

Script = Any  # tests/unit/client_app/conftest.py


async def test_takes_one_exchange_after_the_other(
    script: Script, client: Client, make_task: Callable[..., Task], log: StringIO
) -> None:
    script.tasks.append(script.task)
    async with script.serving(), agent_running(client) as running:
        await until(lambda: script.decoded, running)
        assert script.polls[0].keys() == {"wait"}
        script.task, script.decoded, script._round, script._polled = make_task(exchange=2), None, None, {}
        script.tasks.append(script.task)
        await until(lambda: script.decoded, running)
        await until(lambda: script.polls[-1].get("after") == "2", running)
    assert script.polls[-1]["run"] == script.task.run
    assert client.ledger.open_exchange is None
    assert script.withdrawals == []
    assert "[plain" not in log.getvalue()


async def test_says_that_it_is_alive_while_the_worker_trains(script: Script, client: Client) -> None:
    client.work.seconds = 1.0
    script.tasks.append(script.task)
    async with script.serving(), agent_running(client) as running:
        await until(lambda: script.decoded, running)
    working = [beat for beat in script.heartbeats if beat == {"run": script.task.run, "exchange": 1, "eligible": True}]
    assert len(working) >= 3


async def test_comes_back_when_the_server_does(script: Script, client: Client, log: StringIO) -> None:
    async with agent_running(client) as running:
        await asyncio.sleep(0.5)
        async with script.serving():
            await until(lambda: script.joins == 1, running)
        await asyncio.sleep(0.5)
        async with script.serving():
            await until(lambda: script.joins >= 2, running)
            script.tasks.append(script.task)
            await until(lambda: script.decoded, running)
            said = log.getvalue()
    assert said.count("trying again") == 2  # once for each absence, not for each attempt
    assert said.count("connected again") == 2


async def test_a_task_that_is_none_is_refused_and_the_next_is_taken(
    script: Script, client: Client, log: StringIO
) -> None:
    script.tasks.append(script.task)
    lies = [Response('{"run": "r"}'), Response("[")]
    script.lies["task"] = lambda task: lies.pop() if lies else task
    script.tasks.extend([script.task] * 2)
    async with script.serving(), agent_running(client) as running:
        await until(lambda: script.decoded, running)
    assert "malformed" in log.getvalue()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"roster_sha256": "0" * 64}, "roster-mismatch"),
        ({"federation": "another"}, "federation-mismatch"),
    ],
)
async def test_a_foreign_server_ends_the_agent(
    script: Script, client: Client, changes: dict[str, str], error: str
) -> None:
    script.lies["join"] = lambda answer: answer.model_copy(update=changes)
    async with script.serving(), asyncio.timeout(10):
        with pytest.raises(ProtocolViolation, match=error):
            await Agent(client, FAST).run()


async def test_a_server_that_does_not_know_the_client_ends_the_agent(script: Script, client: Client) -> None:
    script.authenticate = _unknown
    async with script.serving(), asyncio.timeout(10):
        with pytest.raises(Unauthorized, match="not on the roster"):
            await Agent(client, FAST).run()


def _unknown(request: Any, body: bytes) -> None:
    raise Unauthorized("not on the roster")


async def test_case_13_a_restart_leaves_the_exchange_it_was_in(script: Script, client: Client, log: StringIO) -> None:
    """The agent died in exchange 1: it says so, and does not take the same exchange when it is offered again."""
    client.ledger.enter(script.task.run, 1)
    script.tasks.append(script.task)
    async with script.serving(), agent_running(client) as running:
        await until(lambda: len(script.withdrawals) == 2, running)
    assert [w.check for w in script.withdrawals] == ["restarted", "exchange-reused"]
    assert not [request for request in script.requests if request.startswith("PUT")]
    assert client.work.calls == 0
    assert script.polls[0] == {"run": script.task.run, "after": "1", "wait": "25"}


async def test_stopping_withdraws_from_the_open_exchange(script: Script, client: Client) -> None:
    client.work.seconds = 60.0
    script.tasks.append(script.task)
    async with script.serving():
        async with agent_running(client) as running:
            await until(lambda: "PUT key-shares" in script.requests, running)
        [withdrawal] = script.withdrawals
    assert withdrawal.reason is WithdrawalReason.STOPPED
    assert client.work.cancelled
    assert client.ledger.open_exchange is None
    assert not list(client.state_dir.glob("exchange-*"))


async def test_json_lines_carry_the_exchange(script: Script, client: Client) -> None:
    stream = StringIO()
    script.tasks.append(script.task)
    talking = replace(client, output=Output(name="client-1", as_json=True, stream=stream, clock=lambda: 1.5))
    async with script.serving(), agent_running(talking) as running:
        await until(lambda: script.decoded, running)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert all(line["client"] == "client-1" and line["time"] == 1.5 for line in lines)
    [upload] = [line for line in lines if line["stage"] == "upload"]
    assert (upload["round"], upload["exchange"], upload["aggregation"]) == (1, 1, "secure")
    assert upload["seconds"] > 0


def test_control_characters_stay_out_of_the_log() -> None:
    stream = StringIO()
    Output(name="c", stream=stream).info("app", "red \x1b[31m\nalert\u202e" + "x" * 9000)
    assert "\x1b" not in stream.getvalue()
    assert "\u202e" not in stream.getvalue()
    assert stream.getvalue().count("\n") == 1
    assert len(stream.getvalue()) < 2200
