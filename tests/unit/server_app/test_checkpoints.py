"""The newest model of a run: written once, also where two exchanges begin from it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedcore.errors import StorageUnavailable
from fedcore.state import ModelFacts, ModelState, read_facts, sha256_file
from fedcore.wire.tasks import ModelRef
from server_app.runs.files.run_files import RunFiles, RunKeys
from server_app.storage.objects import DirectoryObjects

FACTS = ModelFacts(app_sha256="0" * 64, rounds=1, time="2026-01-01T00:00:00+00:00", kind="checkpoint")
LATER = "2026-01-01T00:01:00+00:00"
KEY = RunKeys("run").checkpoint


class Counted(DirectoryObjects):
    """How many bytes were given to it, and whether it takes any."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.taken = 0
        self.fails = False

    async def put(self, path: Path, key: str) -> None:
        if self.fails:
            raise StorageUnavailable("the disk fails")
        self.taken += path.stat().st_size  # noqa: ASYNC240 - a test's own small file
        await super().put(path, key)


class Kept:
    """A run's files, and the checkpoint as an operator would fetch it."""

    def __init__(self, folder: Path) -> None:
        self.objects = Counted(folder / "objects")
        self.files = RunFiles(self.objects, "run", folder / "run")
        (folder / "run" / "handed").mkdir(parents=True)

    async def keep(self, model: Path, facts: ModelFacts = FACTS) -> ModelRef:
        return await self.files.keep_checkpoint(model, sha256_file(model), facts)

    async def content(self) -> bytes:
        return (await self.objects.fetch(KEY)).read_bytes()


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    states = [ModelState.from_arrays({"w": np.full(1000, number, np.float32)}) for number in range(2)]
    for number, state in enumerate(states):
        state.save(tmp_path / f"model{number}")
    return [tmp_path / f"model{number}" for number in range(2)]


async def test_the_model_that_is_evaluated_and_trained_from_is_written_once(kept: Kept, models: list[Path]) -> None:
    first = await kept.keep(models[0])
    assert kept.objects.taken == first.size
    assert await kept.keep(models[0], replace(FACTS, time=LATER)) == first
    assert kept.objects.taken == first.size
    assert hashlib.sha256(await kept.content()).hexdigest() == first.sha256


@pytest.mark.parametrize("other", [{"rounds": 2}, {"epsilon": 0.5}, {"train_configs": {"config": {"mean": 1.0}}}])
async def test_what_says_something_else_of_the_same_model_is_written(kept: Kept, models: list[Path], other) -> None:
    first = await kept.keep(models[0])
    facts = replace(FACTS, time=LATER, **other)
    assert (await kept.keep(models[0], facts)).sha256 != first.sha256
    assert read_facts(await kept.objects.fetch(KEY)) == facts


async def test_another_model_is_written_and_so_is_the_first_again(kept: Kept, models: list[Path]) -> None:
    references = [await kept.keep(model) for model in (*models, models[0])]
    assert kept.objects.taken == sum(reference.size for reference in references)
    assert references[0] == references[2] != references[1]
    assert hashlib.sha256(await kept.content()).hexdigest() == references[2].sha256


async def test_a_checkpoint_that_could_not_be_written_is_written_the_next_time(kept: Kept, models: list[Path]) -> None:
    first = await kept.keep(models[0])
    kept.objects.fails = True
    with pytest.raises(StorageUnavailable):
        await kept.keep(models[1])
    kept.objects.fails = False
    assert (await kept.keep(models[0])).sha256 == first.sha256
    assert kept.objects.taken == 2 * first.size
