"""A client that is killed between any two lines of its ledger: the next exchange goes well, and nothing piles up."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.agents import agent_running, until

from client_app.exchange.client import Client
from client_app.records.journal import AppendOnlyFile
from client_app.records.ledger import Ledger
from client_app.records.pending_update import PendingUpdate
from client_app.records.result_cache import ResultCache
from client_app.records.transcript import ClientTranscript
from fedcore.wire.tasks import Task

Script = Any  # support.scripted.Scripted


def files_of(folder: Path) -> set[str]:
    """What is in a state folder, models by their number and not by their name."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {"model" if path.parts[0] == "models" else str(path) for path in paths}


async def test_killed_after_any_line(
    script: Script, client: Client, make_task: Callable[..., Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a kill leaves is the folder as it is at that instant: one agent starts from each, and goes on."""
    left: list[Path] = []
    append = AppendOnlyFile.append

    def appended(journal: AppendOnlyFile, text: str, *, sync: bool = True) -> None:
        append(journal, text, sync=sync)
        left.append(tmp_path / f"left-{len(left)}")
        shutil.copytree(client.state_dir, left[-1])

    monkeypatch.setattr(AppendOnlyFile, "append", appended)
    script.tasks.append(script.task)
    async with script.serving(), agent_running(client) as running:
        await until(lambda: script.decoded and client.ledger.open_exchange is None, running)
        monkeypatch.undo()
        assert len(left) >= 8
        records, head = list(script.records), script.head
    for number, folder in enumerate(left, start=2):
        # The server has the record of the exchange only if this client got as far as its signature.
        signed = "signed" in (folder / "transcript.jsonl").read_text()
        script.records, script.head = (list(records), head) if signed else ([], "")
        script.go_on(make_task(exchange=number))
        script.tasks.append(script.task)
        script.withdrawals.clear()
        with (
            Ledger(folder) as ledger,
            ClientTranscript(folder, client.kit.roster) as transcript,
            ResultCache(folder) as results,
        ):
            pending = PendingUpdate(folder)
            again = replace(
                client, state_dir=folder, ledger=ledger, transcript=transcript, results=results, pending=pending
            )
            was_open = ledger.open_exchange
            async with script.serving(), agent_running(again) as running:
                await until(lambda: script.decoded and ledger.open_exchange is None, running)
            assert [w.check for w in script.withdrawals] == ["restarted"] * (was_open is not None)
        assert files_of(folder) == {"ledger.jsonl", "transcript.jsonl", "model", "now.json", "counted.json"}
