"""A run whose server dies after its n-th write, whichever that is, ends as if it had not.

In each of FEDCORE_RUN_KILLS runs three processes die: the first after n writes, n in another part of the run each time,
and those that take it up after some more. When that is follows from the number of the run alone.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import members
from support.postgres import new_database, postgres
from support.services import federation
from support.whole_run import Lost, Outcome, WholeRun

from fedcore import codec
from fedcore.federation import FederationFolder
from fedcore.run.engine.state import RunState
from fedcore.wire.base import Message
from server_app.exchanges.receipts import Receipts
from server_app.runs.journal import fold_rows
from server_app.storage.tables import ExchangeRow

__all__ = ["federation", "new_database", "postgres"]

# A process that dies as it opens the file of an answer leaves that to the collector, which here is the harness's own.
pytestmark = pytest.mark.filterwarnings("ignore:(?s).*unclosed file:pytest.PytestUnraisableExceptionWarning")

RUNS = int(os.environ.get("FEDCORE_RUN_KILLS", "3"))
TRIES = 12
"""Runs in which a planted fault is looked for; most show in the first."""
SETTINGS = {"min-clients": 4}


def same_rounding(*arguments: Any, **named: Any) -> Any:
    """The same update of a client in every run, to the bit."""
    return codec.encode(*arguments, **{**named, "randomness": lambda size: b"\x5a" * size})


@pytest.fixture(autouse=True)
def alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "encode", same_rounding)
    monkeypatch.setattr("server_app.runs.worker.STOP_SECONDS", 0.01)  # the dead write nothing more


async def play(
    federation: FederationFolder, folder: Path, deaths: Sequence[int] = (), database: str = ""
) -> tuple[WholeRun, Outcome]:
    run = WholeRun(federation, folder, deaths, database)
    return run, await run.play(SETTINGS)


def deaths_of(number: int, writes: int) -> list[int]:
    """When the processes of one run die: the first in a part of the run of its own, so that all parts come up."""
    draw = random.Random(number)
    return [writes * number // RUNS + draw.randrange(writes // RUNS + 1), draw.randint(3, 60), draw.randint(3, 60)]


async def test_killed_after_any_write_a_run_ends_with_the_same_bits(
    federation: FederationFolder, tmp_path: Path, new_database: Callable[[], str]
) -> None:
    undisturbed, calm = await play(federation, tmp_path / "calm", database=new_database())
    assert calm.differences(calm) == []
    for number in range(RUNS):
        deaths = deaths_of(number, undisturbed.lives[0].count)
        killed, outcome = await play(federation, tmp_path / str(number), deaths, new_database())
        assert outcome.differences(calm) == [], deaths
        assert killed.witness.equivocations == [], deaths
        assert len(killed.lives) > 1, deaths


async def answers_first(self: Receipts, client: int, step: str, digest: bytes, body: Message) -> None:
    """A message is acknowledged, and written then."""
    text = body.model_dump_json().encode()
    writing = asyncio.create_task(self._store.add_receipt(self._run, self._exchange, step, client, digest, text))
    writing.add_done_callback(lambda done: done.cancelled() or done.exception())
    self._digests[step, client] = digest


def counts_twice(state: RunState, rows: Sequence[ExchangeRow]) -> None:
    """A new process counts what it finds, and once more."""
    for _ in range(2):
        fold_rows(state, rows)


FAULTS = {
    "answers first": ("server_app.exchanges.receipts.Receipts.keep", answers_first, "not on the disk"),
    "counts twice": ("server_app.runs.worker.fold_rows", counts_twice, "rounds were counted"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_planted_fault_is_found(
    federation: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    _, calm = await play(federation, tmp_path / "calm")
    where, what, verdict = FAULTS[fault]
    monkeypatch.setattr(where, what)
    found = []
    for number in range(TRIES):
        try:
            _, outcome = await play(federation, tmp_path / str(number), [70 + number, 10, 10, 10, 10])
        except Lost as lost:
            found.append(str(lost))
        else:
            found += outcome.differences(calm)
        if any(verdict in one for one in found):
            return
    raise AssertionError(f"{fault}: {found}")
