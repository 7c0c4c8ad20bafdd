"""The agent's loop against a scripted server that comes, goes and errs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fastapi import Request, Response
from support.agents import FAST, agent_running, until
from support.scripted import problem

from client_app.agent.agent import Agent
from client_app.agent.presence import AgentPresence
from client_app.exchange.client import Client
from client_app.http.errors import tls_context
from client_app.http.http_transport import HttpTransport, signer
from client_app.output import Output
from fedcore.errors import ProtocolViolation, Unauthorized
from fedcore.federation import ClientKit, provision
from fedcore.monitoring.line_speed import LineSpeed
from fedcore.wire.forms import our_version
from fedcore.wire.tasks import Task
from fedcore.wire.uploads import WithdrawalReason

Script = Any  # support.scripted.Scripted


async def test_takes_one_exchange_after_the_other(
    script: Script, client: Client, make_task: Callable[..., Task], log: StringIO
) -> None:
    script.tasks.append(script.task)
    async with script.serving(), agent_running(client) as running:
        await until(lambda: script.decoded, running)
        assert script.polls[0].keys() == {"wait"}
        script.go_on(make_task(exchange=2))
        script.tasks.append(script.task)
        await until(lambda: script.decoded, running)
        await until(lambda: script.polls[-1].get("after") == "2", running)
    assert script.polls[-1]["run"] == script.task.run
    assert client.ledger.open_exchange is None
    assert script.withdrawals == []
    assert "[plain" not in log.getvalue()


async def test_says_that_it_is_alive_while_the_worker_trains(script: Script, client: Client) -> None:
    client.work.goes_on = asyncio.Event()
    working = {"run": script.task.run, "exchange": 1, "eligible": True, "stopping": False}
    script.tasks.append(script.task)
    async with script.serving(), agent_running(client) as running:
        await until(lambda: script.heartbeats.count(working) >= 3, running)
        assert script.decoded is None
        client.work.goes_on.set()
        await until(lambda: script.decoded, running)


async def test_its_polls_tell_of_the_line_what_heartbeats_have_shown(script: Script, client: Client) -> None:
    client.work.goes_on = asyncio.Event()
    script.tasks.append(script.task)
    async with script.serving(), agent_running(client) as running:
        await until(lambda: len(script.heartbeats) >= 3, running)
        assert "line" not in script.polls[0]
        client.work.goes_on.set()
        await until(lambda: "line" in script.polls[-1], running)
    line = LineSpeed.from_query(script.polls[-1]["line"])
    assert line.round_trip is not None
    assert line.up is None, "an update so small tells nothing"


async def test_an_idle_agent_sends_nothing_but_its_polls(script: Script, client: Client) -> None:
    script.heartbeat_seconds = 0.0  # as often as the agent ever does
    async with script.serving(), agent_running(client) as running:
        await until(lambda: len(script.polls) >= 10, running)
        assert script.heartbeats == []


async def test_a_server_that_no_heartbeat_reaches_is_named_once_each_time(
    script: Script, client: Client, log: StringIO
) -> None:
    presence, leaving = AgentPresence(client), asyncio.Event()
    async with client.transport as transport:
        presence.begin(script.task)
        sending = asyncio.create_task(presence.send_heartbeats(0.0, leaving))
        for absence in (1, 2):
            failures = transport.interruptions
            await until(lambda: transport.interruptions >= failures + 3, sending)  # noqa: B023 - awaited in the loop
            assert log.getvalue().count("waiting") == absence
            async with script.serving():
                beats = len(script.heartbeats)
                await until(lambda: len(script.heartbeats) > beats, sending)  # noqa: B023
        leaving.set()
        presence.heartbeat_due.set()
        await sending


async def test_comes_back_when_the_server_does(script: Script, client: Client, log: StringIO) -> None:
    said: list[int] = []

    def jitter() -> float:
        """The agent pauses before its next attempt: how often has it told of an absence by now?"""
        said.append(log.getvalue().count("trying again"))
        return 0.5

    async with agent_running(client, jitter) as running:
        for absence in (1, 2):
            # Once for each absence, not for each attempt.
            await until(lambda: said.count(absence) >= 3, running)  # noqa: B023 - awaited in the loop
            polls = len(script.polls)
            async with script.serving():
                await until(lambda: len(script.polls) > polls, running)  # noqa: B023
                if absence == 2:
                    script.tasks.append(script.task)
                    await until(lambda: script.decoded, running)
                assert log.getvalue().count("connected again") == absence - 1, "the first time it is not again"
                assert set(said) == {*range(1, absence + 1)}


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


async def test_a_task_of_another_version_is_declined_by_name(script: Script, client: Client) -> None:
    """A client that said nothing would be waited for, and asked again and again."""

    def of_tomorrow(task: Task | None) -> Response | None:
        return task and Response(json.dumps({**json.loads(task.model_dump_json()), "of_tomorrow": 1}))

    script.lies["task"] = of_tomorrow
    script.tasks.append(script.task)
    async with script.serving(), agent_running(client) as running:
        await until(lambda: script.withdrawals, running)
        await until(lambda: script.polls[-1].get("after") == "1", running)
    assert [withdrawal.check for withdrawal in script.withdrawals] == ["unreadable-task"]
    assert client.work.calls == 0


@pytest.mark.parametrize("met", [False, True])
async def test_a_server_that_comes_back_otherwise_is_told_of_as_what_it_is(
    script: Script, client: Client, log: StringIO, met: bool
) -> None:
    """That nobody answered was said before; what the server that answers wants is other news, and said once."""
    async with agent_running(client) as running:
        if met:
            async with script.serving():
                await until(lambda: script.polls, running)
        await until(lambda: "no fedcore server answers" in log.getvalue(), running)
        script.authenticate = _unknown
        async with script.serving():
            asked = len(script.requests)
            await until(lambda: len(script.requests) > asked + 3, running)
    assert log.getvalue().count("does not accept this client's signature") == 1


async def test_a_server_of_another_version_ends_the_agent(script: Script, client: Client) -> None:
    """One of before says a version without forms, and one of later refuses a hello that it does not know."""
    script.lies["join"] = lambda answer: answer.model_copy(update={"version": "0.1.0"})
    async with script.serving():
        with pytest.raises(ProtocolViolation) as refused:
            await Agent(client, FAST).run()
        assert refused.value.check == "other-version"
        assert our_version() in str(refused.value)
        assert "fedcore 0.1.0" in str(refused.value)
        script.answers.append(problem(422, "malformed", "body: extra forbidden"))
        with pytest.raises(ProtocolViolation) as refused:
            await Agent(client, FAST).run()
        assert refused.value.check == "other-version"
    assert script.polls == []


async def test_a_server_that_lost_sums_is_named_and_waited_for(script: Script, client: Client, log: StringIO) -> None:
    """Its operator put an older backup back: the client says what it found, takes part in nothing, and comes back."""
    script.answers.extend([problem(409, "other-transcript", "an older state was put back")] * 3)
    script.tasks.append(script.task)
    async with script.serving(), agent_running(client) as running:
        await until(lambda: not script.answers, running)
        assert script.polls == []
        await until(lambda: script.decoded, running)
    assert log.getvalue().count("transcript-fork") == 1, "once"
    assert json.loads(script.bodies["join"])["head"] == ""


async def test_what_a_server_of_before_does_not_know_is_left_out(script: Script, client: Client) -> None:
    async with script.serving(), agent_running(client) as running:
        await until(lambda: script.polls, running)
    assert "work" not in json.loads(script.bodies["join"])


async def test_a_foreign_server_ends_the_agent(script: Script, client: Client) -> None:
    script.lies["join"] = lambda answer: answer.model_copy(update={"federation": "another"})
    async with script.serving():
        with pytest.raises(ProtocolViolation, match="federation-mismatch"):
            await Agent(client, FAST).run()


async def test_a_client_waits_for_the_roster_that_admits_it(script: Script, client: Client, log: StringIO) -> None:
    """Its owner completes the kit, and the server is handed the roster later: that is the documented order."""
    knows, script.authenticate = script.authenticate, _unknown
    script.tasks.append(script.task)
    async with script.serving(), agent_running(client) as running:
        await until(lambda: "federation publish" in log.getvalue(), running)
        script.authenticate = knows
        await until(lambda: script.decoded, running)


async def test_a_server_with_another_certificate_ends_the_agent(script: Script, client: Client, tmp_path: Path) -> None:
    """That is no roster that is still to come."""
    other = provision(tmp_path / "other", name="testing", clients=2, now=datetime.now(UTC))
    foreign = tls_context(ClientKit.load(other.clients[0]).ca_file)
    async with (
        script.serving(),
        HttpTransport(urls=client.kit.servers, tls=foreign, sign=signer(client.kit)) as transport,
    ):
        with pytest.raises(Unauthorized):
            await Agent(replace(client, transport=transport), FAST).run()


def _unknown(request: Any, body: bytes) -> None:
    raise Unauthorized("not on the roster")


async def test_a_restart_leaves_the_exchange_it_was_in(script: Script, client: Client, log: StringIO) -> None:
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
    client.work.goes_on = asyncio.Event()
    script.tasks.append(script.task)
    async with script.serving():
        async with agent_running(client) as running:
            await until(lambda: "PUT key-shares" in script.requests and client.work.calls, running)
        [withdrawal] = script.withdrawals
    assert (withdrawal.reason, withdrawal.check) == (WithdrawalReason.STOPPED, "")
    assert script.heartbeats[-1]["stopping"]
    assert client.work.cancelled
    assert client.ledger.open_exchange is None
    assert not client.results.model.exists()


async def test_one_that_was_not_needed_is_told_so_while_it_trains(
    script: Script, client: Client, log: StringIO
) -> None:
    """With over-selection: nothing went wrong, so that the owner reads no warning, and the server of no withdrawal."""
    client.work.goes_on = asyncio.Event()
    original = script.get

    async def others_were_faster(route: str, request: Request) -> Response:
        return problem(409, "not-needed", "enough") if route == "survivors" else await original(route, request)

    script.get = others_were_faster
    script.tasks.append(script.task)
    async with script.serving(), agent_running(client) as running:
        await until(lambda: client.work.cancelled, running)
        await until(lambda: script.polls[-1].get("after") == "1", running)
    assert "not needed: enough faster clients had already finished; nothing went wrong here" in log.getvalue()
    assert script.withdrawals == []


async def test_an_idle_agent_says_that_it_stops(script: Script, client: Client) -> None:
    async with script.serving():
        async with agent_running(client) as running:
            await until(lambda: script.polls, running)
        assert [heartbeat["stopping"] for heartbeat in script.heartbeats][-1:] == [True]
    assert script.withdrawals == []


async def test_json_lines_carry_the_exchange(script: Script, client: Client) -> None:
    stream = StringIO()
    script.tasks.append(script.task)
    output = Output(name="client-1", as_json=True, stream=stream, clock=lambda: 1.5)
    talking = replace(client, output=output, clock=count(0.0, 0.25).__next__)
    async with script.serving(), agent_running(talking) as running:
        await until(lambda: script.decoded, running)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert all(line["client"] == "client-1" and line["time"] == "1970-01-01T00:00:01.500Z" for line in lines)
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
