"""What a model's file says of it: any reader of safetensors shows it, its hash covers it, no tensor changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from fedcore.errors import ConfigurationError, PeerError
from fedcore.state import ModelFacts, ModelState, open_initial, read_facts, sha256_file, write_model

STATE = ModelState.from_arrays({"body": np.arange(6, dtype=np.float32), "steps": np.array(3, np.int64)})
FACTS = ModelFacts(
    run="1f2e",
    app="digits",
    app_sha256="ab" * 32,
    federation="hospitals",
    rounds=5,
    epsilon=1.25,
    delta=1e-5,
    time="2026-01-02T03:04:05+00:00",
)


def test_any_reader_of_the_format_shows_them(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_model(STATE, path, FACTS)
    assert read_facts(path) == FACTS
    with safe_open(path, framework="numpy") as file:
        said = file.metadata()
    assert said["fedcore.run"] == "1f2e"
    assert said["fedcore.epsilon"] == "1.25"
    assert said["format"] == "pt", "transformers reads no file with metadata that lack it"
    assert load_file(path)["body"].tolist() == STATE["body"].tolist()
    assert dict(ModelState.open(path).items()).keys() == {"body", "steps"}


@pytest.mark.parametrize(("name", "why"), [("nosuch", "No such file"), (".", "Is a directory"), ("empty", "no safe")])
def test_a_file_to_start_from_that_is_none_is_named_with_what_is_wrong(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(ConfigurationError) as refused:
        open_initial(tmp_path / name)
    assert str(tmp_path / name) in str(refused.value)
    assert why in str(refused.value)


def test_the_hash_covers_them_and_the_tensors_do_not_change(tmp_path: Path) -> None:
    bare, one, other = (tmp_path / name for name in ("bare", "one", "other"))
    STATE.save(bare)
    write_model(STATE, one, FACTS)
    write_model(ModelState.open(bare), other, ModelFacts(app="digits", app_sha256="ab" * 32, rounds=4, time=FACTS.time))
    assert len({sha256_file(path) for path in (bare, one, other)}) == 3
    assert len({ModelState.open(path).sha256() for path in (bare, one, other)}) == 1
    assert read_facts(bare) is None


def test_a_file_is_replaced_while_it_is_mapped(tmp_path: Path) -> None:
    path = tmp_path / "model"
    STATE.save(path)
    write_model(ModelState.open(path), path, FACTS)
    assert ModelState.open(path)["body"].tolist() == STATE["body"].tolist()


@pytest.mark.parametrize("metadata", [{"fedcore.rounds": "3"}, {**FACTS.to_metadata(), "fedcore.epsilon": "inf"}])
def test_facts_that_nobody_wrote_are_refused(tmp_path: Path, metadata: dict[str, str]) -> None:
    save_file(dict(STATE.items()), tmp_path / "model", metadata=metadata)
    with pytest.raises(PeerError, match="metadata"):
        read_facts(tmp_path / "model")


def test_what_others_say_is_theirs(tmp_path: Path) -> None:
    save_file(dict(STATE.items()), tmp_path / "model", metadata={"format": "pt", "epoch": "3"})
    assert read_facts(tmp_path / "model") is None
