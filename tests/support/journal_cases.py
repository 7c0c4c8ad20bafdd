"""The journal of a run does the same in every store; test modules import all of it beside a fixture `make_store`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fedcore.run.engine.journal import NODES_REQUEST, Journal, JournalStore, RequestDiffers
from tests.support.raising import raises

MakeStore = Callable[[], JournalStore]
"""Another process's view of the same run."""
TRAINING: dict[str, Any] = {
    "op": "exchange",
    "message_type": "train",
    "nodes": [1, 2],
    "model": "a" * 64,
    "configs": {"config": {"lr": 0.1}},
}
REPLIES: dict[str, Any] = {"replies": [{"node": 0, "metrics": {"loss": 0.1 + 0.2, "each": [1.5, -0.0]}}]}


async def keep(make_store: MakeStore, *steps: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """A start of the ServerApp that asks for all of these and gets a reply to each."""
    journal = await Journal.open(make_store())
    for request, reply in steps:
        assert await journal.begin(request) is None
        await journal.answer(reply)


async def test_a_run_begins_with_an_empty_journal(make_store: MakeStore) -> None:
    journal = await Journal.open(make_store())
    assert (journal.known, journal.answered, journal.number, journal.trained) == (False, 0, 0, [])
    assert await journal.begin(NODES_REQUEST) is None
    assert journal.number == 1


async def test_the_same_requests_get_the_same_replies_and_the_next_is_carried_out(make_store: MakeStore) -> None:
    await keep(make_store, (dict(NODES_REQUEST), {"nodes": [1, 2]}), (TRAINING, REPLIES))
    for _ in range(2):
        journal = await Journal.open(make_store())
        assert (journal.known, journal.answered) == (True, 2)
        assert await journal.begin(NODES_REQUEST) == {"nodes": [1, 2]}
        assert await journal.begin(TRAINING) == REPLIES
    assert await journal.begin(NODES_REQUEST) is None
    await journal.answer({"nodes": [3]})
    again = await Journal.open(make_store())
    assert [await again.begin(one) for one in (NODES_REQUEST, TRAINING, NODES_REQUEST)][2] == {"nodes": [3]}


async def test_a_request_that_got_no_reply_is_carried_out_again(make_store: MakeStore) -> None:
    await keep(make_store, (dict(NODES_REQUEST), {"nodes": [1]}))
    for _ in range(2):
        journal = await Journal.open(make_store())
        assert journal.answered == 1
        assert await journal.begin(NODES_REQUEST) == {"nodes": [1]}
        assert await journal.begin(TRAINING) is None
    await journal.answer(REPLIES)
    journal = await Journal.open(make_store())
    assert journal.answered == 2
    assert [await journal.begin(one) for one in (NODES_REQUEST, TRAINING)] == [{"nodes": [1]}, REPLIES]


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"nodes": [2, 1]}, ["nodes"]),
        ({"configs": {"config": {"lr": 0.2}}, "model": "b" * 64}, ["model", "configs"]),
        ({"timeout": 1.0}, ["timeout"]),
        ({"op": "nodes"}, ["op"]),
    ],
)
async def test_another_request_is_refused_by_its_number_and_its_fields(
    make_store: MakeStore, change: dict[str, Any], fields: list[str]
) -> None:
    await keep(make_store, (dict(NODES_REQUEST), {"nodes": [1]}), (TRAINING, REPLIES))
    journal = await Journal.open(make_store())
    await journal.begin(NODES_REQUEST)
    with raises(RequestDiffers, check="request-differs", number=2, fields=fields, numbers=(2,)):
        await journal.begin({**TRAINING, **change})


async def test_a_field_that_is_missing_now_is_named(make_store: MakeStore) -> None:
    await keep(make_store, ({**TRAINING, "timeout": 1.0}, REPLIES))
    journal = await Journal.open(make_store())
    with raises(RequestDiffers, number=1, fields=["timeout"]):
        await journal.begin(TRAINING)


async def test_neither_the_order_of_keys_nor_the_kind_of_a_list_makes_another_request(make_store: MakeStore) -> None:
    await keep(make_store, (TRAINING, REPLIES))
    journal = await Journal.open(make_store())
    turned = {**dict(reversed(TRAINING.items())), "nodes": tuple(TRAINING["nodes"])}
    assert await journal.begin(turned) == REPLIES


async def test_models_of_trainings_are_counted_also_of_those_that_had_their_reply(make_store: MakeStore) -> None:
    other = {"message_type": "evaluate"}, {"model": None}, {"message_type": "query", "model": None}
    requests = [TRAINING, *({**TRAINING, **one} for one in other), {**TRAINING, "message_type": "train.again"}]
    await keep(make_store, *((request, REPLIES) for request in requests))
    journal = await Journal.open(make_store())
    for request in [*requests, {**TRAINING, "model": "c" * 64}]:
        await journal.begin(request)
    assert journal.trained == ["a" * 64, "a" * 64, "c" * 64]
