"""The journal of a run in the server's database: a request is there before anything is done for it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.journal_cases import *  # noqa: F403
from support.journal_cases import TRAINING, MakeStore
from support.store_cases import RUN

from fedcore.errors import ConflictingMessage
from fedcore.run.engine.journal import NODES_REQUEST, Journal, digest_of
from fedcore.wire.tasks import ModelRef
from server_app.runs.app.messages import FROM_APP, ExchangeCall, NodesCall, PlainExchangeCall
from server_app.runs.journal import JournalTable, record_of
from server_app.storage.store import Store
from tests.support.raising import raises

HEAD = {"message_id": "x", "group_id": "2", "created_at": 1.0, "ttl": 43200}
EXCHANGE: dict[str, Any] = {
    "op": "exchange",
    "message_type": "train.x",
    "nodes": [3, 1],
    "server_round": 2,
    "model": "/a",
    "arrays_key": "arrays",
    "configs": {"config": {"lr": 0.1, "n": 1, "k": [1, 2.5], "inf": float("inf"), "b": {"base64": "eA=="}}},
    "weight_key": "num-examples",
    "timeout": 30,
    "ahead": {"train": 2},
}
PLAIN: dict[str, Any] = {
    "op": "plain-exchange",
    "server_round": 2,
    "weight_key": "w",
    "timeout": 1.5,
    "model": "c" * 64,
    "questions": [
        {"node": 1, "message_type": "train", "head": HEAD, "content": "/a"},
        {"node": 2, "message_type": "evaluate", "head": HEAD, "content": "/b"},
    ],
}
FILES = {"/a": ModelRef(sha256="a" * 64, size=3), "/b": ModelRef(sha256="b" * 64, size=3)}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = await Store.open(tmp_path / "state.sqlite")
    await store.add_run(run="run", **RUN)
    yield store
    await store.close()


@pytest.fixture
def make_store(store: Store) -> MakeStore:
    return lambda: JournalTable(store=store, run="run")


async def test_a_request_is_there_before_it_is_carried_out(store: Store, make_store: MakeStore) -> None:
    journal = await Journal.open(make_store())
    await journal.begin(TRAINING)
    (row,) = await store.steps("run")
    assert (row.request, bytes(row.digest), row.answer) == (TRAINING, digest_of(TRAINING), None)
    again = await Journal.open(make_store())
    assert (again.known, again.answered) == (True, 0)


async def test_two_processes_cannot_ask_for_different_things_at_one_number(make_store: MakeStore) -> None:
    first, second = await Journal.open(make_store()), await Journal.open(make_store())
    await first.begin(TRAINING)
    with raises(ConflictingMessage, numbers=(1,)):
        await second.begin(NODES_REQUEST)


def call_of(data: dict[str, Any]) -> NodesCall | ExchangeCall | PlainExchangeCall:
    call = FROM_APP.validate_json(json.dumps(data))
    assert isinstance(call, NodesCall | ExchangeCall | PlainExchangeCall)
    return call


@pytest.mark.parametrize(
    ("data", "digest"),
    [
        ({"op": "nodes"}, "923de8f22e83fffeefce5034bb23c21cf72d100271c816a97a7f7f3175bbceb4"),
        (EXCHANGE, "42deaded66fdeeeabf247e843bcf930af9368313458a1f59c980252dadd3b6ee"),
        (
            {**EXCHANGE, "message_type": "query", "model": None, "arrays_key": "", "configs": {}}
            | {"timeout": None, "ahead": {}},
            "2280dbef4dc3f0d2d97e1c4b3c7ed5854c0dcfbc3247564cb6b4f47a1f5503ed",
        ),
        (PLAIN, "aee1d826f61302ab2c58a5802da6348965e5f04a94bf1590d8535664e48b9fc1"),
    ],
)
def test_databases_of_earlier_versions_have_the_same_digests(data: dict[str, Any], digest: str) -> None:
    assert digest_of(record_of(call_of(data), FILES)).hex() == digest


def test_what_is_new_in_every_process_makes_no_other_request() -> None:
    before, now = EXCHANGE, {**EXCHANGE, "model": "/b"}
    same = {**FILES, "/b": FILES["/a"]}
    assert record_of(call_of(before), FILES) == record_of(call_of(now), same)
    head = {**HEAD, "message_id": "y", "created_at": 2.0}
    later = {**PLAIN, "questions": [{**one, "head": head} for one in PLAIN["questions"]]}
    assert record_of(call_of(PLAIN), FILES) == record_of(call_of(later), FILES)
    assert record_of(call_of(PLAIN), FILES) != record_of(call_of(PLAIN), same)
