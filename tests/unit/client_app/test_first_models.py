"""What a client remembers of the models of runs: over a restart, and no more than it needs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from support.records import make_task

from client_app.exchange.first_model import FIRST_MODELS_FILE, DerivedModels
from client_app.exchange.models import MODELS_FOLDER, Models
from client_app.output import Output
from fedcore.federation.admission.first_model import AppModel
from fedcore.flower.first_model.messages import Derivation, FirstModel, FirstModelStart
from fedcore.run.settings import JobSettings
from fedcore.state import ModelState
from fedcore.system.concurrency import end
from fedcore.system.sandbox.sandbox import Rules
from fedcore.wire.tasks import ModelRef, Task


def asked(run: str, number: int, message_type: str = "train") -> Task:
    return make_task(number, run=run, message_type=message_type, model=ref(number))


def ref(number: int) -> ModelRef:
    return ModelRef(sha256=f"{number:064x}", size=100)


async def test_the_last_models_of_other_runs_are_remembered(tmp_path: Path) -> None:
    models = DerivedModels(tmp_path, Output(name="client-1"))
    for number in (1, 2, 2, 3):
        await models.note(asked("one", number))
    await models.note(asked("two", 4))
    await models.note(asked("two", 5, "query.statistics"))
    again = DerivedModels(tmp_path, Output(name="client-1"))
    assert await again.last_models("three") == {ref(2).sha256, ref(3).sha256, ref(4).sha256}
    assert await again.last_models("one") == {ref(4).sha256}, "a run itself goes on by its own records"


async def test_a_file_that_cannot_be_read_is_as_none(tmp_path: Path) -> None:
    (tmp_path / FIRST_MODELS_FILE).write_text("{")
    models = DerivedModels(tmp_path, Output(name="client-1"))
    assert await models.last_models("one") == frozenset()
    await models.note(asked("one", 1))
    assert await models.last_models("two") == {ref(1).sha256}


async def test_a_derivation_goes_on_without_the_exchange_that_began_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ServerApp that takes longer to its model than the first step of an exchange costs attempts, and no run."""
    begun, began, derived = [], asyncio.Event(), asyncio.Event()

    async def slow(start: FirstModelStart, rules: Rules) -> Derivation:
        begun.append((start.run, start.groups, start.least_groups))
        began.set()
        await derived.wait()
        return FirstModel(sha256=ref(7).sha256)

    monkeypatch.setattr("client_app.exchange.first_model.derive", slow)
    models = DerivedModels(tmp_path, Output(name="client-1"))
    task = asked("one", 1).model_copy(update={"settings": JobSettings(groups=4, min_groups=3).for_clients()})
    for _ in range(2):  # attempts that come too early
        attempt = asyncio.create_task(models.of(task, task.app_sha256, [1, 2, 3, 4]))
        await began.wait()
        await end(attempt)
    derived.set()
    assert await models.of(task, task.app_sha256, [1, 2, 3, 4]) == AppModel(sha256=ref(7).sha256)
    again = DerivedModels(tmp_path, Output(name="client-1"))
    assert await again.of(task, task.app_sha256, [1, 2, 3, 4]) == AppModel(sha256=ref(7).sha256)
    assert begun == [("one", 4, 4)], "a client does not know min-groups, and need not"


async def test_an_agent_that_ends_derives_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def endless(start: FirstModelStart, rules: Rules) -> Derivation:
        begun.set()
        try:
            return await asyncio.Event().wait()  # type: ignore[return-value]
        finally:
            ended.set()

    monkeypatch.setattr("client_app.exchange.first_model.derive", endless)
    models = DerivedModels(tmp_path, Output(name="client-1"))
    task = asked("one", 1)
    exchange = asyncio.create_task(models.of(task, task.app_sha256, [1]))
    await begun.wait()
    await end(exchange)
    assert not ended.is_set()
    await models.aclose()
    assert ended.is_set()


async def test_runs_of_long_ago_are_forgotten(tmp_path: Path) -> None:
    models = DerivedModels(tmp_path, Output(name="client-1"))
    for number in range(1, 103):
        await models.note(asked(f"run-{number}", number))
    known = await models.last_models("now")
    assert len(known) == 100
    assert ref(1).sha256 not in known


@pytest.mark.parametrize("content", ["the model", "another", "nothing"])
async def test_a_model_that_a_client_derives_needs_no_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    own = ModelState.from_arrays({"w": np.arange(5, dtype=np.float32)})
    other = ModelState.from_arrays({"w": np.ones(5, np.float32)})

    async def derived(start: FirstModelStart, rules: Rules) -> Derivation:
        if content != "nothing":
            (own if content == "the model" else other).save(Path(start.file))
        return FirstModel(sha256=own.sha256())

    monkeypatch.setattr("client_app.exchange.first_model.derive", derived)
    task = make_task(1, run="one", message_type="train", model=ModelRef(sha256=own.sha256(), size=100))
    made = await DerivedModels(tmp_path, Output(name="client-1")).of(task, task.app_sha256, [1])
    assert made.sha256 == own.sha256()
    models = Models(tmp_path / MODELS_FOLDER)
    kept = [models.path(own.sha256())] if content == "the model" else []
    assert list(models.folder.iterdir()) == kept
    assert models.has(own.sha256()) == bool(kept)
