"""Which trainings a client takes to be in their sums: those whose shares it released, until they are tried again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client_app.exchange.client import Client
from client_app.exchange.exchange import take_part
from client_app.ranks.failures import OUT_OF_MEMORY, RankFailed
from client_app.records.aggregated_rounds import ROUNDS_FILE, AggregatedRounds
from fedcore.errors import ConfigurationError, FedcoreError
from fedcore.wire.tasks import Task

Script = Any  # support.scripted.Scripted
Make = Callable[..., Task]
RUN = "run one/../x"
"""The name of the scripted run."""


async def take(script: Script, client: Client) -> None:
    async with script.serving():
        await take_part(script.task, client)


def last(client: Client) -> int:
    return AggregatedRounds(client.state_dir).last(RUN)


async def test_a_training_counts_once_its_shares_are_released(script: Script, client: Client, make_task: Make) -> None:
    await take(script, client)
    assert last(client) == 1
    script.go_on(make_task(exchange=2, server_round=2))
    await take(script, client)
    assert client.work.aggregated_rounds == [0, 1]
    assert last(client) == 2


async def test_an_attempt_that_ends_before_does_not_count(script: Script, client: Client, make_task: Make) -> None:
    await take(script, client)
    script.go_on(make_task(exchange=2, server_round=2))
    script.failed = "it is over"
    with pytest.raises(FedcoreError):
        await take(script, client)
    assert last(client) == 1


async def test_a_sum_that_is_tried_again_counts_for_the_new_attempt_alone(
    script: Script, client: Client, make_task: Make
) -> None:
    await take(script, client)
    script.go_on(make_task(exchange=2, attempt=2))
    script.failed = "it is over"
    with pytest.raises(FedcoreError):
        await take(script, client)
    assert last(client) == 0


async def test_a_client_that_contributes_nothing_does_not_count(
    script: Script, client: Client, allow: Callable[..., Client], make_task: Make
) -> None:
    client = allow(client, report_failures=False)
    task = make_task()
    script.task = task.model_copy(update={"encoding": replace(task.encoding, failures=1)})
    client.work.error = RankFailed("rank 0 is out of memory", OUT_OF_MEMORY)
    await take(script, client)
    assert script.decoded.failures == 1
    assert last(client) == 0


async def test_a_plain_reply_counts(
    script: Script, client: Client, allow: Callable[..., Client], make_task: Make
) -> None:
    client = allow(client, allow_plain=True)
    script.task = make_task(aggregation="plain", encoding=None, protection=None)
    await take(script, client)
    assert last(client) == 1


def test_a_run_of_another_name_begins_with_none(tmp_path: Path, make_task: Make) -> None:
    AggregatedRounds(tmp_path).add(make_task())
    assert AggregatedRounds(tmp_path).last(RUN) == 1
    assert AggregatedRounds(tmp_path).last("another") == 0


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / ROUNDS_FILE).write_text("{")
    with pytest.raises(ConfigurationError, match=r"counted\.json"):
        AggregatedRounds(tmp_path).last(RUN)
