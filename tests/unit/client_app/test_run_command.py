"""`fedcore run` before it submits: what it refuses at once instead of after hours of training."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedcore.cli.main import app


def refusal(folder: Path, *words: str) -> str:
    """What the command says with a kit that is not there, which it notices last."""
    done = CliRunner().invoke(app, ["run", str(folder), "--operator", str(folder / "no-kit"), *words])
    assert done.exit_code == 2
    return done.stderr


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of an earlier run."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"hours of training")
    return path


def test_an_earlier_model_is_kept(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    said = refusal(model.parent)
    assert "--out: model.safetensors " in said
    assert "--force" in said
    assert f"--out: {model} " in refusal(model.parent, "--out", str(model))
    assert model.read_bytes() == b"hours of training"


def test_force_replaces_it(model: Path) -> None:
    assert "no-kit" in refusal(model.parent, "--out", str(model), "--force")


def test_a_folder_is_no_place_for_a_model(tmp_path: Path) -> None:
    assert f"--out: {tmp_path} " in refusal(tmp_path, "--out", str(tmp_path), "--force")
