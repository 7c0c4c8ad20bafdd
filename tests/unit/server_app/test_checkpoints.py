"""The newest model of a run: kept once, also where two exchanges begin from it, and in the room of its file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedcore.errors import StorageUnavailable
from fedcore.state import ModelFacts, ModelState, read_facts, sha256_file, write_model
from fedcore.wire.tasks import ModelRef
from server_app.runs.files.run_files import RunFiles, RunKeys, checkpoints
from server_app.storage.objects import DirectoryObjects

FACTS = ModelFacts(app_sha256="0" * 64, rounds=1, time="2026-01-01T00:00:00+00:00", kind="checkpoint")
LATER = "2026-01-01T00:01:00+00:00"
KEYS = RunKeys("run")


class Counted(DirectoryObjects):
    """How many objects were given to it, and how many more it takes."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.taken = 0
        self.takes = 1000

    async def put(self, path: Path, key: str) -> None:
        if self.taken >= self.takes:
            raise StorageUnavailable("the disk fails")
        self.taken += 1
        await super().put(path, key)


class Kept:
    """A run's files, and the checkpoint as an operator would fetch it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "objects"
        self.objects = Counted(self.root)
        self.files = RunFiles(self.objects, "run", folder / "run")
        self.drafts = folder / "run" / "handed"
        self.drafts.mkdir(parents=True)

    async def keep(self, model: Path, facts: ModelFacts = FACTS) -> ModelRef:
        return await self.files.keep_checkpoint(model, sha256_file(model), facts)

    async def file(self) -> Path:
        path, reference = await checkpoints(self.objects, KEYS, self.drafts).file()
        if reference is not None:
            assert (sha256_file(path), path.stat().st_size) == (reference.sha256, reference.size)
        return path

    def bytes(self) -> int:
        """What lies there, without what is a second name of another file."""
        return sum(path.stat().st_size for path in self.root.rglob("*") if path.is_file() and path.stat().st_nlink == 1)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    states = [ModelState.from_arrays({"w": np.full(1000, number, np.float32)}) for number in range(2)]
    for number, state in enumerate(states):
        state.save(tmp_path / f"model{number}")
    return [tmp_path / f"model{number}" for number in range(2)]


async def test_the_model_that_is_evaluated_and_trained_from_is_kept_once(kept: Kept, models: list[Path]) -> None:
    first = await kept.keep(models[0])
    taken = kept.objects.taken
    assert await kept.keep(models[0], replace(FACTS, time=LATER)) == first
    assert kept.objects.taken == taken
    assert sha256_file(await kept.file()) == first.sha256


@pytest.mark.parametrize("other", [{"rounds": 2}, {"epsilon": 0.5}, {"train_configs": {"config": {"mean": 1.0}}}])
async def test_what_says_something_else_of_the_same_model_is_kept(kept: Kept, models: list[Path], other) -> None:
    first = await kept.keep(models[0])
    facts = replace(FACTS, time=LATER, **other)
    assert (await kept.keep(models[0], facts)).sha256 != first.sha256
    assert read_facts(await kept.file()) == facts


async def test_another_model_is_kept_and_so_is_the_first_again(kept: Kept, models: list[Path]) -> None:
    references = [await kept.keep(model) for model in (*models, models[0])]
    assert references[0] == references[2] != references[1]
    assert sha256_file(await kept.file()) == references[2].sha256


async def test_a_checkpoint_takes_the_room_of_the_model_alone_until_its_file_is_wanted(
    kept: Kept, models: list[Path]
) -> None:
    first = await kept.keep(models[0])
    assert kept.bytes() < 1000
    assert await kept.file() == await kept.file()
    assert first.size < kept.bytes() < first.size + 1000
    await kept.keep(models[1])
    assert kept.bytes() < 1000


@pytest.mark.parametrize("takes", [2, 3])
async def test_a_checkpoint_that_could_not_be_kept_leaves_the_one_before(
    kept: Kept, models: list[Path], takes: int
) -> None:
    first = await kept.keep(models[0])
    kept.objects.takes = takes
    with pytest.raises(StorageUnavailable):
        await kept.keep(models[1])
    kept.objects.takes = 1000
    assert sha256_file(await kept.file()) == first.sha256
    second = await kept.keep(models[1])
    assert sha256_file(await kept.file()) == second.sha256 != first.sha256


async def test_the_whole_file_of_fedcore_0_2_0_is_read_until_there_is_another(kept: Kept, models: list[Path]) -> None:
    whole = kept.drafts / "whole"
    write_model(ModelState.open(models[0]), whole, FACTS)
    content = whole.read_bytes()
    await kept.objects.put(whole, KEYS.checkpoint)
    assert (await kept.file()).read_bytes() == content
    second = await kept.keep(models[1])
    assert sha256_file(await kept.file()) == second.sha256
    with pytest.raises(KeyError):
        await kept.objects.fetch(KEYS.checkpoint)


async def test_a_run_without_a_checkpoint_has_none(kept: Kept) -> None:
    with pytest.raises(KeyError):
        await kept.file()
