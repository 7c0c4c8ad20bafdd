"""A client of two ranks tunes an adapter: with another client it makes the model that one rank each makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedcore.cli.main import app as command

STARTING = 300.0
SMALL: dict[str, Any] = {"num-server-rounds": 1, "fraction-evaluate": 0.0, "optimizer": "sgd"}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The template, with SGD: AdamW makes steps of rounding errors as long as those of gradients."""
    folder = tmp_path_factory.mktemp("made") / "chat"
    made = CliRunner().invoke(command, ["new", str(folder), "--template", "chat"])
    assert made.exit_code == 0, made.output
    [written] = folder.glob("*/app.py")
    written.write_text(written.read_text().replace('name="adamw"', 'name="sgd"'))
    return folder
