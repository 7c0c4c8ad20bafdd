"""The journal of a simulated run in a folder: a step is there with its reply and all that goes with it, or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.journal_cases import *  # noqa: F403
from support.journal_cases import REPLIES, TRAINING, MakeStore, keep

from fedcore.run.engine.attempts import run_now
from fedcore.run.engine.journal import NODES_REQUEST, Journal
from fedcore.simulation.checkpoint.journal_folder import JournalFolder


@pytest.fixture
def restored() -> list[tuple[Any, str]]:
    """What the run has taken in again, and from which folder."""
    return []


@pytest.fixture
def make_store(tmp_path: Path, restored: list[tuple[Any, str]]) -> MakeStore:
    def save(folder: Path) -> dict[str, Any]:
        (folder / "large").touch()
        return {"of": folder.name}

    return lambda: JournalFolder(
        path=tmp_path, save=save, restore=lambda saved, folder: restored.append((saved["of"], folder.name))
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_a_step_is_one_file_once_it_has_its_reply(tmp_path: Path, make_store: MakeStore) -> None:
    journal = await Journal.open(make_store())
    await journal.begin(TRAINING)
    assert names(tmp_path) == ["1"]
    await journal.answer(REPLIES)
    assert names(tmp_path) == ["1", "1.json"]


async def test_the_run_is_restored_step_by_step(make_store: MakeStore, restored: list[tuple[Any, str]]) -> None:
    await keep(make_store, (dict(NODES_REQUEST), {"nodes": [1]}), (TRAINING, REPLIES))
    assert restored == []
    await Journal.open(make_store())
    assert restored == [("1", "1"), ("2", "2")]


async def test_what_belongs_to_no_reply_is_removed(tmp_path: Path, make_store: MakeStore) -> None:
    """A request that failed has no reply, and what an app asked for after that was asked of another run."""
    await keep(make_store, (dict(NODES_REQUEST), {"nodes": [1]}))
    journal = await Journal.open(make_store())
    for request in (NODES_REQUEST, TRAINING, TRAINING):
        await journal.begin(request)
    await journal.answer(REPLIES)
    assert names(tmp_path) == ["1", "1.json", "2", "3", "3.json"]
    again = await Journal.open(make_store())
    assert names(tmp_path) == ["1", "1.json"]
    assert [await again.begin(one) for one in (NODES_REQUEST, TRAINING)] == [{"nodes": [1]}, None]


def test_it_never_waits(make_store: MakeStore) -> None:
    journal = run_now(Journal.open(make_store()))
    assert run_now(journal.begin(TRAINING)) is None
    run_now(journal.answer(REPLIES))
