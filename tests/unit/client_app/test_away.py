"""A server that is killed and restarted, that does not lead, or that is behind a proxy."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Response
from fastapi.responses import StreamingResponse
from support.agents import agent_running, until
from support.ports import reserved_port
from support.scripted import problem
from support.serving import serving

from client_app.agent.server_errors import kind_of_answer, may_pass
from client_app.exchange.client import Client
from client_app.http.errors import tls_context
from client_app.http.http_transport import HttpTransport, signer
from client_app.http.retry import ONCE, Retry, RetryDeadline
from fedcore.errors import Refused, ServerUnreachable
from fedcore.federation import ClientKit
from fedcore.wire.presence import HeartbeatIn, JoinIn, JoinOut
from fedcore.wire.secagg import SurvivorsOut
from fedcore.wire.secagg_codec import pack_members
from fedcore.wire.tasks import Task
from fedcore.wire.uploads import WithdrawalReason
from tests.support.raising import raises

Script = Any  # support.scripted.Scripted
JOIN = JoinIn(app_sha256="0" * 64, version="1")
QUICK = Retry(stuck_seconds=0.5, first_pause=0.01, longest_pause=0.05)


def broken() -> StreamingResponse:
    """An answer whose connection ends in the middle."""

    async def content() -> AsyncIterator[bytes]:
        yield b"x"
        raise ConnectionResetError

    return StreamingResponse(content(), headers={"content-length": "10"})


def instead(script: Script, route: str, answer: Callable[[], Response | None]) -> None:
    """Answer the requests to `route` that are no GET with what `answer` makes, as long as it makes something."""
    usual = script.take

    async def take(asked: str, body: bytes) -> Response:
        other = answer() if asked.startswith(route) else None
        return other if other is not None else await usual(asked, body)

    script.take = take


class TestAnExchange:
    async def test_goes_on_when_the_server_does(self, script: Script, client: Client) -> None:
        """It was away while the app trained: no work is lost, and the client joins again."""
        client.work.goes_on = asyncio.Event()
        script.tasks.append(script.task)
        async with agent_running(client) as running:
            async with script.serving():
                await until(lambda: "PUT key-shares" in script.requests, running)
                await until(lambda: "GET survivors" in script.requests, running)
            before = client.transport.interruptions
            await until(lambda: client.transport.interruptions >= before + 3, running)
            client.work.goes_on.set()
            async with script.serving():
                await until(lambda: script.decoded, running)
                await until(lambda: script.joins == 2, running)
        assert (client.work.calls, script.withdrawals) == (1, [])

    @pytest.mark.parametrize("aggregation", ["secure", "plain"])
    async def test_parts_that_the_server_lost_are_sent_again(
        self,
        script: Script,
        client: Client,
        make_task: Callable[..., Task],
        allow: Any,
        aggregation: str,
        log: StringIO,
    ) -> None:
        losses = [True, True]

        def lose() -> Response | None:
            if not losses:
                return None
            losses.pop()
            script.parts.clear()
            return problem(409, "parts-missing", "part 0 is missing")

        plain = {"protection": None, "encoding": None} if aggregation == "plain" else {}
        script.task = make_task(aggregation=aggregation, **plain)
        script.tasks.append(script.task)
        instead(script, "manifest", lose)
        async with script.serving(), agent_running(allow(client, allow_plain=True)) as running:
            await until(lambda: "manifest" in script.bodies, running)
            await until(lambda: client.ledger.last and client.ledger.open_exchange is None, running)
        assert script.requests.count("PUT part 0") == 3
        assert script.withdrawals == []
        assert losses == []

    async def test_an_update_that_a_restored_server_lacks_is_sent_again(self, script: Script, client: Client) -> None:
        """The server had it; then a backup was put back that was made before, and it waits for the update."""
        answers = [problem(409, "parts-missing", "part 0 is missing"), Response(status_code=204)]

        def lose() -> Response | None:
            script.parts.clear()
            return answers.pop() if answers else None

        instead(script, "manifest", lambda: lose() if answers else None)
        script.tasks.append(script.task)
        async with agent_running(client) as running:
            async with script.serving():
                await until(lambda: "PUT manifest" in script.requests, running)
                asked = len(script.requests)
                await until(lambda: "GET survivors" in script.requests[asked:], running)
            before = client.transport.interruptions
            await until(lambda: client.transport.interruptions > before, running)
            async with script.serving():
                await until(lambda: script.decoded, running)
        assert script.requests.count("PUT part 0") == 2
        assert (client.work.calls, script.withdrawals) == (1, [])

    @pytest.mark.parametrize("hides", [False, True])
    async def test_a_signature_that_a_restored_server_lacks_is_sent_again(
        self, script: Script, client: Client, hides: bool
    ) -> None:
        """Over the survivors that were signed and over no others; with the update, which the server lacks, too."""
        restored = asyncio.Event()
        answers = [Response(status_code=204), problem(409, "parts-missing", "part 0 is missing")]

        def lose() -> Response | None:
            if not restored.is_set():
                return None
            script.parts.clear()
            return answers.pop() if answers else Response(status_code=204)

        def wait() -> Response | None:
            """Others have not signed yet, and then the server lacks what this client signed."""
            return None if script.requests.count("PUT consistency") == 2 else Response(status_code=204)

        usual = script.answer
        script.answer = lambda route: (wait() if route == "consistency" else None) or usual(route)
        instead(script, "manifest", lose)
        instead(script, "consistency", wait)
        script.tasks.append(script.task)
        async with agent_running(client) as running:
            async with script.serving():
                await until(lambda: "GET consistency" in script.requests, running)
            before = client.transport.interruptions
            await until(lambda: client.transport.interruptions > before, running)
            restored.set()
            if hides:
                script.lies["survivors"] = lambda _: SurvivorsOut(survivors=pack_members((1, 2, 3), script.task.cohort))
            async with script.serving():
                await until(lambda: script.withdrawals if hides else script.decoded, running)
        assert script.requests.count("PUT part 0") == 2
        assert script.requests.count("PUT consistency") == (1 if hides else 2)
        assert [one.check for one in script.withdrawals] == (["survivors-changed"] if hides else [])

    @pytest.mark.parametrize("retry", [QUICK])
    async def test_ends_where_one_request_never_gets_through(
        self, script: Script, client: Client, make_task: Callable[..., Task]
    ) -> None:
        """A proxy that resets large bodies, say: the others are not kept waiting until the exchange's end."""
        script.tasks.append(script.task)
        resets = [True]
        instead(script, "part ", lambda: broken() if resets else None)
        async with script.serving(), agent_running(client) as running:
            await until(lambda: script.withdrawals, running)
            resets.clear()
            script.go_on(make_task(exchange=2))
            script.tasks.append(script.task)
            await until(lambda: script.decoded and client.ledger.open_exchange is None, running)
        assert [(w.reason, w.check) for w in script.withdrawals] == [(WithdrawalReason.STOPPED, "unreachable")]

    async def test_a_withdrawal_that_was_not_heard_is_told_with_the_next_contact(
        self, script: Script, client: Client, make_task: Callable[..., Task]
    ) -> None:
        script.tasks.append(make_task(app_sha256="cd" * 32))
        deaf = [broken, lambda: problem(503, "not-leading", "ask another")]
        instead(script, "withdrawal", lambda: deaf.pop()() if deaf else None)
        async with script.serving(), agent_running(client) as running:
            await until(lambda: script.withdrawals, running)
        assert [w.reason for w in script.withdrawals] == [WithdrawalReason.APP_MISMATCH]

    async def test_survives_a_clock_that_is_ahead_for_a_while(
        self, script: Script, client: Client, log: StringIO
    ) -> None:
        """As time synchronisation leaves it for some seconds: the others would have waited for an hour."""
        wrong = [False]
        client.transport.sign_with(signer(client.kit, clock=lambda: time.time() + 8 * wrong[0]))
        client.work.goes_on = asyncio.Event()
        script.tasks.append(script.task)
        async with script.serving(), agent_running(client) as running:
            await until(lambda: "GET survivors" in script.requests, running)
            wrong[0], heard = True, len(script.requests)
            await until(lambda: len(script.requests) >= heard + 4, running)
            wrong[0] = False
            client.work.goes_on.set()
            await until(lambda: script.decoded, running)
            assert script.withdrawals == []  # its own end, which comes next, may find it in the last step


async def test_a_clock_two_hours_off_is_named_and_waited_for(script: Script, client: Client, log: StringIO) -> None:
    """From the first contact on: a service must not need a restart when somebody sets the clock."""
    ahead = [7200.0]
    client.transport.sign_with(signer(client.kit, clock=lambda: time.time() + ahead[0]))
    async with script.serving(), agent_running(client) as running:
        await until(lambda: "set the clock of this machine" in log.getvalue(), running)
        await until(lambda: script.requests.count("POST join") >= 3, running)
        assert script.joins == 0
        ahead[0] = 0.0
        await until(lambda: script.joins == 1 and script.polls, running)
    assert log.getvalue().count("set the clock of this machine") == 1


class TestAddresses:
    async def test_the_next_one_is_asked(
        self, script: Script, client: Client, kits: dict[int, ClientKit], federation: Any
    ) -> None:
        """Nobody is at the first address, a server that stands by is at the second."""
        standby = FastAPI()
        standby.add_route("/{path:path}", lambda _: problem(503, "not-leading", "ask another"), methods=["GET", "POST"])
        kit, certificate = kits[1], federation.server / "server.crt"
        with reserved_port() as nobody, reserved_port() as second:
            servers = (f"https://127.0.0.1:{nobody}", f"https://127.0.0.1:{second}", *kit.servers)
            config = uvicorn.Config(
                standby,
                port=second,
                ssl_certfile=certificate,
                ssl_keyfile=certificate.with_name("server.key"),
                log_level="critical",
                lifespan="off",
                ws="none",
            )
            transport = HttpTransport(urls=servers, tls=tls_context(kit.ca_file), sign=signer(kit), retry=QUICK)
            script.tasks.append(script.task)
            async with (
                serving(config),
                script.serving(),
                transport,
                agent_running(replace(client, transport=transport)) as running,
            ):
                await until(lambda: script.decoded, running)
                assert transport.url == kit.servers[0]

    @pytest.mark.parametrize(("named", "next_one"), [(2, 2), (0, 1), ("https://elsewhere.example.org:8443", 1)])
    async def test_the_leader_that_a_standby_names_is_asked_if_the_kit_has_it(
        self, script: Script, kits: dict[int, ClientKit], named: int | str, next_one: int
    ) -> None:
        """Whatever a server says, a client goes to no address that its owner did not write down."""
        kit = kits[1]
        with reserved_port() as two, reserved_port() as three:
            servers = (*kit.servers, *(f"https://127.0.0.1:{port}" for port in (two, three)))
            leader = servers[named] if isinstance(named, int) else named
            script.answers.append(problem(503, "not-leading", "ask another", leader=leader))
            transport = HttpTransport(urls=servers, tls=tls_context(kit.ca_file), sign=signer(kit))
            async with script.serving(), transport:
                with pytest.raises(Refused):
                    await transport.send("POST", "/v1/heartbeat", HeartbeatIn(), retry=ONCE)
            assert transport.url == servers[next_one]

    async def test_two_requests_that_fail_together_go_on_once(self, kits: dict[int, ClientKit]) -> None:
        kit = kits[1]
        with reserved_port() as one, reserved_port() as two, reserved_port() as three:
            servers = [f"https://127.0.0.1:{port}" for port in (one, two, three)]
            transport = HttpTransport(urls=servers, tls=tls_context(kit.ca_file), sign=signer(kit))
            beat = HeartbeatIn()
            async with transport:
                both = (transport.send("POST", "/v1/heartbeat", beat, retry=ONCE) for _ in range(2))
                failures = await asyncio.gather(*both, return_exceptions=True)
            assert all(isinstance(failure, ServerUnreachable) for failure in failures)
            assert servers[0] in str(failures[0])
            assert transport.url == servers[1]


class TestRetryDeadline:
    def test_a_server_that_is_away_is_waited_for(self) -> None:
        now = [0.0]
        deadline = RetryDeadline(Retry(stuck_seconds=60.0), lambda: now[0], answers=5)
        for now[0] in range(0, 100_000, 1000):
            assert not deadline.expired(True, 5)

    @pytest.mark.parametrize(("seconds", "last"), [(10, 6), (50, 3)])
    def test_a_request_that_alone_fails_is_given_up(self, seconds: int, last: int) -> None:
        """After a minute, and after four attempts, each of which takes most of a minute for a body on a slow line."""
        now = [0.0]
        deadline = RetryDeadline(Retry(stuck_seconds=60.0), lambda: now[0], answers=0)
        ends = []
        for answers, now[0] in enumerate(range(0, 10 * seconds, seconds), start=1):
            ends.append(deadline.expired(True, answers))
        assert ends.index(True) == last
        assert deadline.stuck

    def test_an_absence_between_begins_anew(self) -> None:
        now = [0.0]
        deadline = RetryDeadline(Retry(stuck_seconds=60.0), lambda: now[0], answers=0)
        assert not deadline.expired(True, 1)
        now[0] = 50.0
        assert not deadline.expired(True, 1)
        now[0] = 100.0
        assert not deadline.expired(True, 2)

    def test_a_download_that_comes_further_is_not_given_up(self) -> None:
        now = [0.0]
        deadline = RetryDeadline(Retry(stuck_seconds=60.0), lambda: now[0], answers=0)
        for cut, now[0] in enumerate((70.0, 140.0, 210.0), start=1):
            assert not deadline.expired(True, cut, 1000 * cut)
        for cut, now[0] in enumerate((269.0, 290.0, 310.0), start=4):
            assert not deadline.expired(True, cut, 3000)
        now[0] = 330.0
        assert deadline.expired(True, 7, 3000)

    @pytest.mark.parametrize("retry", [Retry(stuck_seconds=0.0, first_pause=0.001, longest_pause=0.001)])
    async def test_a_line_that_is_cut_after_each_byte_carries_a_model(
        self, script: Script, client: Client, tmp_path: Path
    ) -> None:
        came = []

        def next_byte(_: bytes) -> Response:
            came.append(len(came))
            first = {"etag": '"one"', "content-length": "10"}
            rest = {"content-range": f"bytes {came[-1]}-9/10", "content-length": str(10 - came[-1])}
            return StreamingResponse(broken().body_iterator, 206 if came[-1] else 200, rest if came[-1] else first)

        script.lies["model"] = next_byte
        async with script.serving():
            await client.transport.download(
                "/v1/model", tmp_path / "model", size=10, sha256=hashlib.sha256(b"x" * 10).hexdigest()
            )
        assert (tmp_path / "model").read_bytes() == b"x" * 10
        assert len(came) == 10

    @pytest.mark.parametrize("retry", [QUICK])
    async def test_a_request_that_alone_fails_is_named(self, script: Script, client: Client, tmp_path: Path) -> None:
        script.lies["model"] = lambda _: broken()
        async with script.serving():
            with raises(ServerUnreachable, check="stuck"):
                await client.transport.download("/v1/model", tmp_path / "model", size=10, sha256="0" * 64)
            assert (await client.transport.ask("POST", "/v1/join", JOIN, JoinOut)).name == "client-1"


@pytest.mark.parametrize(("status", "passes"), [(429, True), (500, True), (503, True), (403, False), (409, False)])
def test_an_agent_waits_for_a_server_that_does_not_serve_now(status: int, passes: bool) -> None:
    refused = Refused(status, "kind", "text")
    assert may_pass(refused) == passes
    assert kind_of_answer(refused) == ("" if passes else "kind")
