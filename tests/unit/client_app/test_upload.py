"""The way up: parts that are made while others are sent, sent again, resumed, refused and given up."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI, Request, Response
from support.encodings import encoding_to_json

from client_app.exchange import exchange as exchange_module
from client_app.exchange import update_encoder
from client_app.exchange.client import Client
from client_app.exchange.exchange import take_part
from client_app.exchange.upload import read_parts, send_parts
from fedcore.codec import CodecSettings, first_encoding
from fedcore.errors import ProtocolViolation, Refused
from fedcore.secagg import ClientSession
from fedcore.state import ModelState, sha256_file
from fedcore.wire.chunks import PART_BYTES, update_digest
from fedcore.wire.tasks import ModelRef
from fedcore.wire.uploads import PartsOut
from tests.support.raising import raises

Script = Any  # support.scripted.Scripted
UPDATE = os.urandom(4 * PART_BYTES + 5)
DIGEST = update_digest(
    len(UPDATE),
    [hashlib.sha256(UPDATE[start : start + PART_BYTES]).digest() for start in range(0, len(UPDATE), PART_BYTES)],
).hex()
PATH = "/v1/runs/r/exchanges/1/update/parts"


def problem(status: int, kind: str, detail: str = "no") -> Response:
    document = f'{{"type":"urn:fedcore:problem:{kind}","title":"t","status":{status},"detail":"{detail}"}}'
    return Response(document, status_code=status, media_type="application/problem+json")


class Parts:
    """UPDATE in parts, as a generator that tells how far it is."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.made: list[int] = []
        self.closed = False
        self.fails_at = fails_at
        self.threads: set[int] = set()

    def run(self) -> Iterator[memoryview]:
        try:
            for index, start in enumerate(range(0, len(UPDATE), PART_BYTES)):
                if index == self.fails_at:
                    raise MemoryError
                self.threads.add(threading.get_ident())
                self.made.append(index)
                yield memoryview(UPDATE)[start : start + PART_BYTES]
        finally:
            self.closed = True


async def send(client: Client, parts: Parts) -> str:
    return await send_parts(client.transport, PATH, parts.run(), size=len(UPDATE))  # type: ignore[arg-type]


async def test_all_parts_arrive_and_the_digest_is_that_of_the_whole(script: Script, client: Client) -> None:
    parts = Parts()
    async with script.serving():
        assert await send(client, parts) == DIGEST
    assert script.update() == UPDATE
    assert sorted(script.requests) == [f"PUT part {index}" for index in range(5)]
    assert parts.closed
    assert threading.get_ident() not in parts.threads
    assert client.transport.traffic.up > len(UPDATE)


async def test_a_file_is_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(UPDATE)
    parts = list(read_parts(path))
    assert [len(part) for part in parts] == [PART_BYTES] * 4 + [5]
    assert b"".join(parts) == UPDATE


class TestOverlap:
    """The order of events is the proof, no clock."""

    async def test_parts_leave_before_the_last_is_made(self, script: Script, client: Client) -> None:
        """The server holds back its answers: two parts are on the line and the third is ready, but no more is made."""
        parts, arrived, answers = Parts(), asyncio.Semaphore(0), asyncio.Event()
        original = script.take

        async def held_back(route: str, body: bytes) -> Response:
            arrived.release()
            await answers.wait()
            return await original(route, body)

        script.take = held_back
        async with script.serving():
            sending = asyncio.create_task(send(client, parts))
            await arrived.acquire()
            await arrived.acquire()
            while len(parts.made) < 3:  # noqa: ASYNC110 - a thread makes them, and may take its time
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert parts.made == [0, 1, 2]
            answers.set()
            assert await sending == DIGEST
        assert parts.made == [0, 1, 2, 3, 4]

    async def test_a_part_is_sent_while_the_next_is_made(self, script: Script, client: Client) -> None:
        """The next part is not ready before the server has the one before."""
        came = threading.Event()
        original = script.take

        async def noticed(route: str, body: bytes) -> Response:
            came.set()
            return await original(route, body)

        def waiting() -> Iterator[memoryview]:
            yield memoryview(UPDATE)[:PART_BYTES]
            assert came.wait(60), "the first part is on its way already"
            yield memoryview(UPDATE)[PART_BYTES : PART_BYTES + 5]

        script.take = noticed
        async with script.serving():
            await send_parts(client.transport, PATH, waiting(), size=PART_BYTES + 5)  # type: ignore[arg-type]
        assert sorted(script.parts) == [0, 1]


class TestTrouble:
    async def test_a_part_that_is_refused_for_now_is_sent_again_and_no_other(
        self, script: Script, client: Client
    ) -> None:
        script.answers.append(problem(429, "busy"))
        async with script.serving():
            assert await send(client, Parts()) == DIGEST
        assert script.update() == UPDATE
        puts = [request for request in script.requests if request.startswith("PUT")]
        assert len(puts) == 6
        assert script.requests.count("GET parts") == 1

    async def test_a_part_whose_answer_was_lost_is_not_sent_again(self, script: Script, client: Client) -> None:
        original = script.take
        lost = []

        async def loses(route: str, body: bytes) -> Response:
            answer = await original(route, body)
            if route == "part 3" and not lost:
                lost.append(route)
                return problem(502, "internal", "a proxy gave up")
            return answer

        script.take = loses
        async with script.serving():
            assert await send(client, Parts()) == DIGEST
        assert lost
        assert sorted(r for r in script.requests if r.startswith("PUT")) == [f"PUT part {i}" for i in range(5)]
        assert "GET parts" in script.requests

    async def test_a_part_that_the_server_has_otherwise_is_sent_again(self, script: Script, client: Client) -> None:
        """What the server says it has counts only where it is the very part."""
        script.answers.append(problem(429, "busy"))
        script.lies["parts"] = lambda _: PartsOut(parts=dict.fromkeys(range(5), "ab" * 32))
        async with script.serving():
            assert await send(client, Parts()) == DIGEST
        assert script.update() == UPDATE

    async def test_a_refusal_ends_the_upload_and_the_making(self, script: Script, client: Client) -> None:
        parts = Parts()
        script.answers.append(problem(409, "stale-step", "too late"))
        async with script.serving():
            with raises(Refused, kind="stale-step"):
                await send(client, parts)
        assert parts.closed
        assert 4 not in parts.made

    async def test_a_piece_that_cannot_be_made_ends_the_upload(self, script: Script, client: Client) -> None:
        parts = Parts(fails_at=3)
        async with script.serving():
            with pytest.raises(MemoryError):
                await send(client, parts)
        assert set(script.parts) <= {0, 1, 2}

    async def test_an_upload_that_is_cancelled_stops_making(self, script: Script, client: Client) -> None:
        parts, came = Parts(), asyncio.Event()

        async def never(route: str, body: bytes) -> Response:
            came.set()
            await asyncio.Event().wait()
            raise AssertionError

        script.take = never
        async with script.serving():
            sending = asyncio.create_task(send(client, parts))
            await came.wait()
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
        assert parts.closed

    async def test_an_early_refusal_is_heard(self, client: Client, listening_to: Callable[..., Any]) -> None:
        """The server answers after the head and closes, as for a part that came too late; the answer itself is lost in
        the reset of the connection, so the client asks before it sends again, and hears it there."""
        app = FastAPI()
        requests: list[str] = []

        async def refuse(request: Request) -> Response:
            requests.append(f"{request.method} {request.url.path}?{request.url.query}")
            answer = problem(409, "stale-step", "the exchange went on without this client")
            answer.headers["connection"] = "close"
            return answer

        app.add_route("/{path:path}", refuse, methods=["PUT", "GET"])
        async with listening_to(app):
            with raises(Refused, kind="stale-step"):
                await send(client, Parts())
        asked = [request for request in requests if request.startswith("GET")]
        assert set(asked) <= {f"GET {PATH}?size={len(UPDATE)}"}
        assert len(requests) <= 4


# --- a whole exchange with an update of several parts ---------------------------------------------------------------


@pytest.fixture
def large(script: Script, make_task: Callable[..., Any], tmp_path: Path) -> Script:
    """A model whose update, 4 bytes a parameter in a first exchange, has three parts."""
    model = ModelState.from_arrays({"weight": np.zeros(2_150_000, np.float32)})
    model.save(script.model)
    script.task = make_task(
        model=ModelRef(sha256=sha256_file(script.model), size=script.model.stat().st_size),
        encoding=encoding_to_json(first_encoding(CodecSettings(w_max=100), model.layout, 4)),
    )
    return script


async def test_the_server_has_a_part_before_the_last_is_masked(
    large: Script, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the sum is right, so what left was masked."""
    came = threading.Event()
    original_take, original_mask = large.take, update_encoder.apply_masks
    masked: list[int] = []

    async def noticed(route: str, body: bytes) -> Response:
        if route == "part 0":
            came.set()
        return await original_take(route, body)

    def watched(words: Any, terms: Any, *, threads: int = 1, offset: int = 0) -> None:
        if words.size < large.encoding().words:  # the peers of the script mask their vectors in one part
            if offset == 2 * PART_BYTES // 8:
                assert came.wait(60), "a part must not wait for the last one's masks"
            masked.append(offset)
        original_mask(words, terms, threads=threads, offset=offset)

    large.take = noticed
    monkeypatch.setattr(update_encoder, "apply_masks", watched)
    async with large.serving():
        await take_part(large.task, replace(client, threads=2))
    assert masked == [0, PART_BYTES // 8, 2 * PART_BYTES // 8]
    assert large.decoded.examples == 40
    np.testing.assert_allclose(large.decoded.state["weight"], np.full(2_150_000, 1.75), atol=1e-5)
    expected = ["PUT advertisement", "PUT key-shares", "PUT manifest", "PUT consistency", "PUT unmask"]
    expected[2:2] = [f"PUT part {index}" for index in range(3)]
    assert sorted(request for request in large.requests if request.startswith("PUT")) == sorted(expected)
    assert large.requests.index("PUT manifest") > max(large.requests.index(f"PUT part {i}") for i in range(3))


async def test_a_session_whose_upload_failed_is_abandoned(
    large: Script, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions: list[ClientSession] = []

    def watched(**arguments: Any) -> ClientSession:
        sessions.append(ClientSession(**arguments))
        return sessions[-1]

    original = large.take

    async def refuses(route: str, body: bytes) -> Response:
        return problem(409, "stale-step", "too late") if route == "part 1" else await original(route, body)

    large.take = refuses
    monkeypatch.setattr(exchange_module, "ClientSession", watched)
    async with large.serving():
        with raises(Refused, kind="stale-step"):
            await take_part(large.task, client)
        [session] = sessions
        assert session.state == "abandoned"
        with pytest.raises(ProtocolViolation, match="exchange-reused"):
            await take_part(large.task, client)


async def test_sending_makes_no_second_copy_of_the_vector(client: Client, listening_to: Callable[..., Any]) -> None:
    """In addition to the vector itself only the chunks on the line take memory, whatever its length."""

    async def swallow(scope: Any, receive: Any, send_: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send_({"type": "http.response.start", "status": 204, "headers": []})
        await send_({"type": "http.response.body"})

    words = np.zeros(12 * PART_BYTES // 8, np.uint64)

    def parts() -> Iterator[memoryview]:
        for start in range(0, words.size, PART_BYTES // 8):
            yield words[start : start + PART_BYTES // 8].data.cast("B")

    async with listening_to(swallow):
        tracemalloc.start()
        try:
            await send_parts(client.transport, PATH, parts(), size=words.nbytes)  # type: ignore[arg-type]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < words.nbytes / 4
