"""Ids of messages and replies, as Flower's own Grids set them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedcore.exchange import ExchangeReply, ExchangeRequest
from fedcore.flower import mean_only
from fedcore.flower.grid import ExchangeGrid
from fedcore.flower.secure_grid import SecureGrid
from fedcore.state import ModelState

NODES = (1, 2, 3)


@dataclass
class Mean:
    """An ExchangeBackend whose cohort answers with zeros."""

    def nodes(self) -> list[int]:
        return list(NODES)

    def found(self, figures: object) -> None:
        del figures

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        state = ModelState.from_arrays({"w": np.zeros(2, np.float32)})
        return [ExchangeReply(node=0, state=state, examples=3, metrics={})]


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 0)


def messages() -> list[Message]:
    content = RecordDict({"arrays": ArrayRecord({"w": Array(np.ones(2, np.float32))})})
    return [Message(content, node, "train") for node in NODES]


def secure() -> ExchangeGrid:
    return SecureGrid(Mean(), run_id=1)


@mean_only
def test_the_id_of_pushed_messages_is_the_one_that_the_reply_names() -> None:
    """One reply stands for all nodes, so a loop that waits for a reply to every id ends."""
    grid, pushed = secure(), messages()
    ids = list(grid.push_messages(pushed))
    assert ids == [pushed[0].metadata.message_id]
    replies = list(grid.pull_messages(ids))
    assert [reply.metadata.reply_to_message_id for reply in replies] == ids
    assert list(grid.pull_messages(ids)) == []


@mean_only
def test_replies_name_the_messages_that_were_sent() -> None:
    sent = messages()
    (reply,) = secure().send_and_receive(sent)
    assert reply.metadata.reply_to_message_id == sent[0].metadata.message_id != ""


@mean_only
def test_a_message_that_is_sent_again_gets_a_new_id() -> None:
    grid, sent = secure(), messages()
    first = list(grid.push_messages(sent))
    assert not set(first) & set(grid.push_messages(sent))
