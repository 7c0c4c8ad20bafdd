"""What a ServerApp's process and its server say to each other: JSON that comes out as what went in, and files."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from fedcore.run.exchange import ExchangeRequest
from fedcore.run.plain import PlainReply
from fedcore.run.room import LEAST_MODEL
from fedcore.state import ModelState
from fedcore.state.mapped import LARGE_BYTES
from fedcore.system.json_lines import BlockingConnection
from server_app.runs.app.main import ServerBackend
from server_app.runs.app.messages import FROM_APP, TO_APP, ExchangeCall, PlainReplies, Replies, Room, RoomCall


def test_replies_come_as_paths() -> None:
    replies = [PlainReply(node=1, content=Path("/run/reply-1"), examples=3, metrics={"loss": 0.5})]
    sent = PlainReplies(replies=replies)
    assert TO_APP.validate_json(sent.model_dump_json()) == sent
    with pytest.raises(ValidationError):
        TO_APP.validate_json(sent.model_dump_json().replace('"/run/reply-1"', '{"state": {}}'))


def test_an_app_says_nothing_else() -> None:
    with pytest.raises(ValidationError):
        FROM_APP.validate_json('{"op": "start"}')


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of a connection."""
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def training_of(model: ModelState, nodes: tuple[int, ...] = (1,)) -> ExchangeRequest:
    return ExchangeRequest(
        message_type="train", nodes=nodes, server_round=1, model=model, arrays_key="a", configs={}, weight_key="n",
        timeout=None,
    )  # fmt: skip


def test_a_large_first_model_is_written_once(ends: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    here, there = ends
    backend = ServerBackend(BlockingConnection(here, TO_APP, on_close=lambda: None), tmp_path)
    for reply in (Room(), Replies(replies=[])):
        there.sendall(reply.model_dump_json().encode() + b"\n")
    model = ModelState.from_arrays({"w": np.zeros(LARGE_BYTES, np.uint8)})
    first = backend.write_first(model, 1)
    assert FROM_APP.validate_json(there.recv(1 << 16)) == RoomCall(layout=model.layout, nodes=1)
    file, written = first.path, os.stat(first.path or "").st_mtime_ns
    assert backend.exchange(training_of(first)) == []
    call = FROM_APP.validate_json(there.recv(1 << 16))
    assert isinstance(call, ExchangeCall)
    assert call.model == str(file)
    assert os.stat(call.model).st_mtime_ns == written


def test_a_small_one_stays_where_it_is(ends: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    model = ModelState.from_arrays({"w": np.zeros(3, np.float32)})
    backend = ServerBackend(BlockingConnection(ends[0], TO_APP, on_close=lambda: None), tmp_path)
    assert backend.write_first(model, 1) is model


@pytest.mark.parametrize("size", [LEAST_MODEL, LARGE_BYTES])
def test_nothing_of_a_large_model_is_written_before_the_server_has_room_for_it(
    ends: tuple[socket.socket, socket.socket], tmp_path: Path, size: int
) -> None:
    here, there = ends
    backend = ServerBackend(BlockingConnection(here, TO_APP, on_close=lambda: None), tmp_path)
    model = ModelState.from_arrays({"w": np.zeros(size, np.uint8)})
    with ThreadPoolExecutor(1) as pool:
        replies = pool.submit(lambda: backend.exchange(training_of(backend.write_first(model, 3), nodes=(1, 2, 3))))
        assert FROM_APP.validate_json(there.recv(1 << 16)) == RoomCall(layout=model.layout, nodes=3)
        assert list(tmp_path.iterdir()) == []
        for reply in (Room(), Replies(replies=[])):
            there.sendall(reply.model_dump_json().encode() + b"\n")
        assert replies.result() == []
    assert isinstance(FROM_APP.validate_json(there.recv(1 << 16)), ExchangeCall)
    assert len(list(tmp_path.iterdir())) == 1
