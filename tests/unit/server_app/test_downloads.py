"""The chain of models that clients are sent: the same out of the same models, whoever makes it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedcore.state import ModelState, add_difference, apply_exact_difference, sha256_file
from server_app.runs.files.downloads import ModelDownloads, SentModel
from server_app.runs.files.run_files import RunFiles, reference
from server_app.storage.objects import DirectoryObjects


def run_files(folder: Path) -> RunFiles:
    (folder / "run" / "sent").mkdir(parents=True)
    return RunFiles(DirectoryObjects(folder / "objects"), "run", folder / "run")


def models(folder: Path, count: int, **more: np.ndarray) -> list[Path]:
    rng, values = np.random.default_rng(7), np.zeros(4000, np.float32)
    for number in range(count):
        values = values + rng.standard_normal(4000).astype(np.float32)
        ModelState.from_arrays({"w": values, **more}).save(folder / f"model{number}")
    return [folder / f"model{number}" for number in range(count)]


async def send_all(downloads: ModelDownloads, paths: list[Path]) -> list[SentModel]:
    return [await downloads.send(path, await reference(path)) for path in paths]


async def test_a_life_after_a_restart_sends_the_same_models(tmp_path: Path) -> None:
    paths = models(tmp_path, 4)
    (tmp_path / "again").mkdir()
    lives = [await send_all(ModelDownloads(run_files(folder), 16), paths) for folder in (tmp_path, tmp_path / "again")]
    assert [one.reference for one in lives[0]] == [one.reference for one in lives[1]]
    assert lives[0][0].reference == await reference(paths[0]), "the first is the strategy's own"
    assert len({one.reference.sha256 for one in lives[0]}) == 4


async def test_each_model_is_the_one_before_and_a_difference(tmp_path: Path) -> None:
    downloads, paths, held = ModelDownloads(run_files(tmp_path), 16), models(tmp_path, 3), tmp_path / "held"
    for number, path in enumerate(paths):
        sent = await downloads.send(path, await reference(path))
        assert sent.base == path, "the mean is added to the strategy's own model"
        assert sha256_file(sent.path) == sent.reference.sha256
        if number:
            assert sent.difference is not None
            assert sent.difference.base == sha256_file(held)
            assert sent.difference.path.stat().st_size < sent.reference.size * 0.55
            there = set((tmp_path / "run" / "sent").iterdir())
            assert there == {sent.path, sent.difference.path}, "the model before is gone"
            add_difference(ModelState.open(held), ModelState.open(sent.difference.path), tmp_path / "made")
            assert sha256_file(tmp_path / "made") == sent.reference.sha256
        held.write_bytes(sent.path.read_bytes())


async def test_the_same_model_again_is_the_same_file(tmp_path: Path) -> None:
    downloads, (first, second) = ModelDownloads(run_files(tmp_path), 16), models(tmp_path, 2)
    sent = await send_all(downloads, [first, second, second])
    assert sent[1] == sent[2]
    assert len(list((tmp_path / "run" / "sent").iterdir())) == 2, "older ones are removed"


async def test_a_model_of_another_layout_goes_whole(tmp_path: Path) -> None:
    downloads = ModelDownloads(run_files(tmp_path), 16)
    (one,) = models(tmp_path, 1)
    (tmp_path / "other").mkdir()
    (other,) = models(tmp_path / "other", 1, more=np.zeros(3, np.float32))
    sent = (await send_all(downloads, [one, other]))[1]
    assert sent.difference is None
    assert sent.reference == await reference(other)


async def test_without_the_setting_nothing_is_made(tmp_path: Path) -> None:
    (one,) = models(tmp_path, 1)
    told = SimpleNamespace()  # no files are touched
    sent = await ModelDownloads(told, 32).send(one, await reference(one))  # type: ignore[arg-type]
    assert (sent.path, sent.base, sent.difference) == (one, None, None)


async def test_a_mean_goes_as_its_change(tmp_path: Path) -> None:
    files, (first, second, third) = run_files(tmp_path), models(tmp_path, 3)
    downloads = ModelDownloads(files, 32)
    for before, mean in ((first, second), (second, third)):
        sent = await downloads.send(before, await reference(before))
        path = await downloads.change_file(sent)
        assert path is not None
        path.write_bytes(b"a change")
        downloads.note_mean(sha256_file(mean))
        following = await downloads.send(mean, await reference(mean))
        assert (following.path, following.base) == (mean, None)
        assert following.difference is not None
        assert (following.difference.base, following.difference.path) == (sha256_file(before), path)
        assert await downloads.send(mean, await reference(mean)) == following, "to be evaluated, and to train from"
        there = {one.difference.path for one in (sent, following) if one.difference is not None}
        assert set((tmp_path / "run" / "sent").iterdir()) == there, "changes that nobody fetches any more are gone"


async def test_a_model_that_is_no_mean_goes_whole(tmp_path: Path) -> None:
    files, (first, mean, other) = run_files(tmp_path), models(tmp_path, 3)
    downloads = ModelDownloads(files, 32)
    path = await downloads.change_file(await downloads.send(first, await reference(first)))
    assert path is not None
    path.write_bytes(b"a change")
    downloads.note_mean(sha256_file(mean))
    assert (await downloads.send(other, await reference(other))).difference is None


async def test_a_change_that_was_not_made_is_not_sent(tmp_path: Path) -> None:
    files, (first, mean) = run_files(tmp_path), models(tmp_path, 2)
    downloads = ModelDownloads(files, 32)
    await downloads.change_file(await downloads.send(first, await reference(first)))
    downloads.note_mean(sha256_file(mean))
    assert (await downloads.send(mean, await reference(mean))).difference is None


async def test_where_clients_get_differences_there_are_no_changes(tmp_path: Path) -> None:
    downloads, (first,) = ModelDownloads(run_files(tmp_path), 16), models(tmp_path, 1)
    assert await downloads.change_file(await downloads.send(first, await reference(first))) is None


def slow(*slow_ones: int) -> Callable[[Collection[int]], frozenset[int]]:
    return frozenset(slow_ones).intersection


def close_models(folder: Path, count: int) -> list[Path]:
    """Models of a training: each has moved by a thousandth."""
    rng = np.random.default_rng(7)
    weights = rng.standard_normal(20_000)
    for number in range(count):
        weights = weights + 1e-3 * rng.standard_normal(weights.size)
        ModelState.from_arrays({"w": weights.astype(np.float32)}).save(folder / f"model{number}")
    return [folder / f"model{number}" for number in range(count)]


async def ask(downloads: ModelDownloads, path: Path, clients: set[int], *slow_ones: int) -> SentModel:
    """An exchange of some clients over a model."""
    return await downloads.for_clients(await downloads.send(path, await reference(path)), clients, slow(*slow_ones))


async def test_a_model_that_is_no_mean_goes_as_the_exact_difference(tmp_path: Path) -> None:
    downloads, paths = ModelDownloads(run_files(tmp_path), 32), close_models(tmp_path, 3)
    assert (await ask(downloads, paths[0], {1, 2}, 2)).difference is None, "nobody has a model"
    for before, path in pairwise(paths):
        sent = await ask(downloads, path, {1, 2}, 2)
        assert (sent.path, sent.base, sent.reference) == (path, None, await reference(path))
        assert sent.difference is not None
        assert sent.difference.base == sha256_file(before)
        assert sent.fetched == sent.difference.path.stat().st_size < 0.7 * sent.reference.size
        apply_exact_difference(ModelState.open(before), sent.difference.path, tmp_path / "made")
        assert sha256_file(tmp_path / "made") == sent.reference.sha256
        assert await ask(downloads, path, {1, 2}, 2) == sent, "to be evaluated, and to train from"
        assert len(list((tmp_path / "run" / "sent").iterdir())) == 2, "the model before is gone"


@pytest.mark.parametrize(
    ("first", "second", "slow_one", "is_made"),
    [
        ({1, 2}, {1, 2}, 2, True),
        ({1, 2}, {2, 3}, 2, True),
        ({1, 2}, {2, 3}, 3, False),
        ({1, 2}, {1, 3}, 2, False),
        ({1, 2}, {1, 2}, 9, False),
    ],
)
async def test_it_is_made_for_a_slow_client_that_has_the_base(
    tmp_path: Path, first: set[int], second: set[int], slow_one: int, is_made: bool
) -> None:
    downloads, (before, after) = ModelDownloads(run_files(tmp_path), 32), close_models(tmp_path, 2)
    await ask(downloads, before, first, slow_one)
    assert ((await ask(downloads, after, second, slow_one)).difference is not None) == is_made


async def test_it_is_made_when_a_slow_client_comes_that_has_the_base(tmp_path: Path) -> None:
    """Others evaluate a model before it trains from it; what they have is the base of the next."""
    downloads, (one, two, three) = ModelDownloads(run_files(tmp_path), 32), close_models(tmp_path, 3)
    await ask(downloads, one, {1, 2}, 2)
    assert (await ask(downloads, two, {3}, 2, 3)).difference is None
    assert (await ask(downloads, two, {1, 2}, 2, 3)).difference is not None
    assert (await ask(downloads, three, {3}, 2, 3)).difference is not None


async def test_without_slow_lines_the_model_before_takes_no_room(tmp_path: Path) -> None:
    downloads = ModelDownloads(run_files(tmp_path), 32)
    for path in close_models(tmp_path, 3):
        await ask(downloads, path, {1, 2})
        assert len(list((tmp_path / "run" / "sent").iterdir())) == 1


async def test_models_that_are_not_close_go_whole(tmp_path: Path) -> None:
    downloads = ModelDownloads(run_files(tmp_path), 32)
    for number in range(2):
        values = np.random.default_rng(number).integers(0, 1 << 32, 9000, dtype=np.uint32)
        ModelState.from_arrays({"w": values}).save(tmp_path / f"model{number}")
        assert (await ask(downloads, tmp_path / f"model{number}", {1}, 1)).difference is None
    assert len(list((tmp_path / "run" / "sent").iterdir())) == 1


async def test_a_change_wins_until_the_strategy_changes_a_mean(tmp_path: Path) -> None:
    downloads, (one, two, three, four) = ModelDownloads(run_files(tmp_path), 32), close_models(tmp_path, 4)
    change = await downloads.change_file(await ask(downloads, one, {1}, 1))
    assert change is not None
    change.write_bytes(b"a change")
    downloads.note_mean(sha256_file(two))
    sent = await ask(downloads, two, {1}, 1)
    assert sent.difference is not None
    assert sent.difference.path == change
    assert len(list((tmp_path / "run" / "sent").iterdir())) == 2, "the model before is gone"
    following = await downloads.change_file(sent)
    assert following is not None
    following.write_bytes(b"another change")
    downloads.note_mean(sha256_file(four))
    sent = await ask(downloads, three, {1}, 1)
    assert sent.difference is not None
    assert sent.difference.path not in (change, following)
    assert not following.exists()
    assert await downloads.change_file(sent) is None, "it would be made in vain"
    assert (await ask(downloads, four, {1}, 1)).difference is not None


async def test_where_clients_get_differences_in_bfloat16_there_are_no_exact_ones(tmp_path: Path) -> None:
    downloads, paths = ModelDownloads(run_files(tmp_path), 16), close_models(tmp_path, 2)
    for path in paths:
        sent = await downloads.send(path, await reference(path))
        assert await downloads.for_clients(sent, {1}, slow(1)) == sent
