"""Words of `fedcore server` that are refused before a federation is read."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from typer.testing import CliRunner

from server_app.main import server


@pytest.mark.parametrize(
    "address", ["a.example.org:8443", "http://a.example.org", "https://a.example.org/path", "https://"]
)
def test_an_address_that_no_kit_could_have(address: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(server, ["--federation", str(tmp_path), "--address", address], standalone_mode=False)
    assert isinstance(done.exception, click.BadParameter)
    assert done.exception.exit_code == 2
    assert "--address" in str(done.exception.param_hint)
