"""The client's own model on a client's disk: whole after any crash, and never another app's."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.own_models import RECORD, loaded, state_of

from fedcore.errors import ConfigurationError, StorageFull, UsageError
from fedcore.state import ModelState, OwnModelFolder, StateSink, own_model
from tests.support.raising import raises


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    store = OwnModelFolder(tmp_path / "state" / "local")
    assert store.load() is None
    store.save(state_of(1.0), RECORD)
    model = OwnModelFolder(store.folder).load(app_sha256=RECORD.app_sha256, layout=state_of(0.0).layout)
    assert model is not None
    assert model.record == RECORD
    assert model.state.layout == state_of(0.0).layout
    for name, array in state_of(1.0).items():
        np.testing.assert_array_equal(model.state[name], array)


def test_it_is_for_its_owner_alone_and_one_file_at_a_time(tmp_path: Path) -> None:
    store = OwnModelFolder(tmp_path / "local")
    for number in range(3):
        store.save(state_of(number), replace(RECORD, server_round=number))
    assert loaded(store) == (2.0, 2)
    assert sorted(path.name for path in store.folder.iterdir()) == ["model-3.safetensors", "record.json"]
    assert store.folder.stat().st_mode & 0o777 == 0o700


def test_a_loaded_model_can_be_saved_again_and_stays_readable(tmp_path: Path) -> None:
    store = OwnModelFolder(tmp_path / "local")
    store.save(state_of(1.0), RECORD)
    model = store.load()
    assert model is not None
    store.save(model.state, replace(RECORD, server_round=4))
    assert loaded(store) == (1.0, 4)
    assert float(model.state["body.weight"][0, 0]) == 1.0, "its file is gone, its map is not"


def test_it_can_be_written_block_by_block(tmp_path: Path) -> None:
    store, state = OwnModelFolder(tmp_path / "local"), state_of(1.0)

    def write(sink: StateSink) -> None:
        for spec in reversed(state.layout.specs):
            for start in range(spec.size):
                sink.write(spec, start, state[spec.name].reshape(-1)[start : start + 1])

    def half(sink: StateSink) -> None:
        sink.write(state.layout.specs[0], 0, state["body.weight"].reshape(-1))
        raise RuntimeError("the rank that has the rest is gone")

    store.write(state.layout, write, RECORD)
    with pytest.raises(RuntimeError, match="rank"):
        store.write(state.layout, half, replace(RECORD, server_round=4))
    model = store.load(layout=state.layout)
    assert model is not None
    assert model.record == RECORD
    assert {name: array.tolist() for name, array in model.state.items()} == {n: a.tolist() for n, a in state.items()}


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    OwnModelFolder(tmp_path).save(state_of(1.0), RECORD)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_another_apps_model_is_refused(tmp_path: Path) -> None:
    store = OwnModelFolder(tmp_path / "local")
    store.save(state_of(1.0), RECORD)
    with raises(ConfigurationError, check="other-app", match=r"abababababab….*cdcdcdcdcdcd…"):
        store.load(app_sha256="cd" * 32)


def test_another_layout_is_refused(tmp_path: Path) -> None:
    store = OwnModelFolder(tmp_path / "local")
    store.save(state_of(1.0), RECORD)
    wider = ModelState.from_arrays({**state_of(1.0), "body.weight": np.zeros((2, 4), np.float32)})
    with raises(ConfigurationError, check="other-layout", match=r"'body.weight'.*F32\[2, 3\]"):
        store.load(layout=wider.layout)


def test_a_personal_tensor_that_is_not_there_is_a_bug(tmp_path: Path) -> None:
    store = OwnModelFolder(tmp_path / "local")
    with pytest.raises(UsageError, match="'tail'"):
        store.save(state_of(1.0), replace(RECORD, personal=("head.bias", "tail")))
    assert not store.folder.exists()


# --- crashes


def failing(monkeypatch: pytest.MonkeyPatch, target: Any, name: str, at: int) -> list[int]:
    """Call number `at` of a function of the system finds the disk full."""
    real, calls = getattr(target, name), [0]

    def call(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments, **named)

    monkeypatch.setattr(target, name, call)
    return calls


@pytest.mark.parametrize(
    ("target", "name", "at"), [(os, "pwrite", 3), (os, "fsync", 1), (os, "fsync", 3), (os, "replace", 2)]
)
def test_a_full_disk_leaves_the_model_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Any, name: str, at: int
) -> None:
    store = OwnModelFolder(tmp_path / "local")
    store.save(state_of(1.0), RECORD)
    with monkeypatch.context() as patched:
        failing(patched, target, name, at)
        with pytest.raises(StorageFull):
            store.save(state_of(2.0), replace(RECORD, server_round=4))
    assert loaded(store) == (1.0, 3)
    store.save(state_of(2.0), replace(RECORD, server_round=4))
    assert loaded(store) == (2.0, 4)
    assert len(list(store.folder.iterdir())) == 2, "nothing is left of the failed attempt"


def test_a_reader_that_a_save_overtakes_gets_the_new_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = OwnModelFolder(tmp_path / "local")
    store.save(state_of(1.0), RECORD)
    real = ModelState.open

    def overtaken(path: Path) -> ModelState:
        monkeypatch.setattr(own_model.ModelState, "open", real)
        OwnModelFolder(store.folder).save(state_of(2.0), replace(RECORD, server_round=4))
        return real(path)

    monkeypatch.setattr(own_model.ModelState, "open", overtaken)
    assert loaded(store) == (2.0, 4)


@pytest.mark.parametrize(
    ("spoil", "names"),
    [
        (lambda folder: (folder / "record.json").write_text("{"), r"record\.json.*JSON"),
        (lambda folder: (folder / "record.json").write_text("[]"), r"record\.json"),
        (lambda folder: edit(folder, version=2), r"record\.json"),
        (lambda folder: edit(folder, more=1), r"record\.json"),
        (lambda folder: edit(folder, serial="../x"), r"record\.json"),
        (lambda folder: (folder / "model-1.safetensors").unlink(), "local"),
        (lambda folder: os.truncate(folder / "model-1.safetensors", 40), r"model-1\.safetensors"),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path: Path, spoil: Any, names: str) -> None:
    store = OwnModelFolder(tmp_path / "local")
    store.save(state_of(1.0), RECORD)
    spoil(store.folder)
    with raises(ConfigurationError, check="damaged", match=names):
        store.load()


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "record.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
