"""What a client remembers of the models of runs: over a restart, and no more than it needs."""

from __future__ import annotations

from pathlib import Path

from support.records import make_task

from client_app.exchange.first_model import FIRST_MODELS_FILE, DerivedModels
from client_app.output import Output
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


async def test_runs_of_long_ago_are_forgotten(tmp_path: Path) -> None:
    models = DerivedModels(tmp_path, Output(name="client-1"))
    for number in range(1, 103):
        await models.note(asked(f"run-{number}", number))
    known = await models.last_models("now")
    assert len(known) == 100
    assert ref(1).sha256 not in known
