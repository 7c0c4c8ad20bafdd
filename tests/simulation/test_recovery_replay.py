"""The counterexamples of proofs/recovery.py: a fault in the code breaks its promise, and without it none is broken.

The fault is planted by replacing one public function, or two where one more check stands behind it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from support.recovery_replay import GatedStore, replay
from support.serverside import until
from support.services import federation

from fedcore.errors import RoundFailed
from fedcore.federation import FederationFolder
from fedcore.run.engine.outcome import ExchangeFailure
from fedcore.wire.uploads import ManifestIn
from server_app.exchanges.exchange import Exchange
from server_app.exchanges.receipts import Receipts
from server_app.exchanges.receiver import MessageReceiver
from server_app.exchanges.stages import Participants, ParticipantState
from server_app.exchanges.sums.masked_sum import MaskedSum
from server_app.storage.database import Database
from server_app.storage.tables import ExchangeRow

__all__ = ["federation"]

PROOFS = Path(__file__).parents[2] / "proofs"
Patch = pytest.MonkeyPatch
WRITES: set[asyncio.Task[Any]] = set()


def later(write: Any) -> None:
    """A write that nobody waits for."""
    task = asyncio.create_task(write)
    WRITES.add(task)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())


def answered_first(patch: Patch) -> None:
    async def answers_first(self: MessageReceiver, client: int, manifest: ManifestIn, digest: bytes) -> None:
        await self.add_update(client, manifest)
        self.clients.take(client)
        later(self.receipts.keep(client, "manifest", digest, manifest))

    patch.setattr(MessageReceiver, "use_update", answers_first)


def no_fence(patch: Patch) -> None:
    patch.setattr(Database, "fence", lambda *_: None)


def vectors_not_read(patch: Patch) -> None:
    restore = MaskedSum.restore

    async def reads_the_saved_sum_alone(self: MaskedSum, folded: Any, digests: Any) -> None:
        saved = set(folded["clients"]) if folded else set()
        await restore(self, folded, {client: digest for client, digest in digests.items() if client in saved})
        self.clients = set(digests)

    patch.setattr(MaskedSum, "restore", reads_the_saved_sum_alone)


def added_again(patch: Patch) -> None:
    restore = MaskedSum.restore

    async def adds_what_is_there(self: MaskedSum, folded: Any, digests: Any) -> None:
        await restore(self, folded, digests)
        for client in folded["clients"] if folded else ():
            await self.add(client)

    patch.setattr(MaskedSum, "restore", adds_what_is_there)


def no_deduplication(patch: Patch) -> None:
    def unless_there(name: str) -> Callable[[Participants, int], None]:
        change = getattr(Participants, name)

        def changed(self: Participants, client: int) -> None:
            if self.state(client) is not ParticipantState.TAKEN:
                change(self, client)

        return changed

    patch.setattr(Receipts, "has", lambda *_: False)
    for name in ("admit", "take", "refuse"):
        patch.setattr(Participants, name, unless_there(name))


def removed_first(patch: Patch) -> None:
    save = MaskedSum.save

    async def removes_first(self: MaskedSum) -> None:
        await self.delete_vectors()
        await save(self)

    patch.setattr(MaskedSum, "save", removes_first)


def disclosed_first(patch: Patch) -> None:
    real = GatedStore.__getattr__

    def writes_later(self: GatedStore, name: str) -> Any:
        method = real(self, name)
        if name != "close_stage":
            return method

        exchange = self.process.exchange

        async def after_the_next_begins(*arguments: Any, **named: Any) -> None:
            await until(lambda: exchange.stages.current != arguments[2])
            await method(*arguments, **named)

        async def close_stage(*arguments: Any, **named: Any) -> None:
            later(after_the_next_begins(*arguments, **named))

        return close_stage

    patch.setattr(GatedStore, "__getattr__", writes_later)


def end_of_the_abandoned(patch: Patch) -> None:
    async def abandon(self: Exchange, reason: str) -> None:
        failed = self.make_outcome(failure=ExchangeFailure.of(RoundFailed(reason))).to_json()
        mine = (ExchangeRow.run == self.task.run, ExchangeRow.exchange == self.task.exchange)
        statement = update(ExchangeRow).where(*mine).values(stage="failed", result=failed)
        await self.services.store.database.execute(statement)

    patch.setattr(Exchange, "abandon", abandon)


WRONG = "the sum is not that of the survivors"
LOST = "an acknowledged update is lost"
FAULTS: dict[str, tuple[Callable[[Patch], None], str]] = {
    "answered-first": (answered_first, LOST),
    "no-fence": (no_fence, LOST),
    "two-leaders": (no_fence, "two leaders write"),
    "vectors-not-read": (vectors_not_read, WRONG),
    "added-again": (added_again, WRONG),
    "no-deduplication": (no_deduplication, WRONG),
    "removed-first": (removed_first, WRONG),
    "disclosed-first": (disclosed_first, "clients hear of two sets"),
    "end-of-the-abandoned": (end_of_the_abandoned, "an exchange ends twice"),
}


@cache
def counterexample(fault: str) -> list[str]:
    """The actions that Spin gives."""
    if shutil.which("spin") is None or shutil.which("gcc") is None:
        pytest.skip("needs spin and gcc: apt-get install spin gcc")
    command = [sys.executable, str(PROOFS / "recovery.py"), "--json", fault]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)
    return list(result["actions"])


async def broken(federation: FederationFolder, folder: Path, fault: str) -> set[str]:
    actions = await asyncio.to_thread(counterexample, fault)
    async with replay(federation, folder) as made:
        await made.play(actions)
        return made.broken()


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_planted_fault_breaks_its_promise(
    federation: FederationFolder, tmp_path: Path, monkeypatch: Patch, fault: str
) -> None:
    plant, promise = FAULTS[fault]
    plant(monkeypatch)
    assert promise in await broken(federation, tmp_path, fault)


@pytest.mark.parametrize("fault", FAULTS)
async def test_without_the_fault_the_same_schedule_breaks_nothing(
    federation: FederationFolder, tmp_path: Path, fault: str
) -> None:
    assert await broken(federation, tmp_path, fault) == set()


def test_every_fault_of_the_model_is_replayed() -> None:
    spec = importlib.util.spec_from_file_location("recovery", PROOFS / "recovery.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "recovery", module)
        spec.loader.exec_module(module)
    assert set(module.FAULTS) == set(FAULTS)
