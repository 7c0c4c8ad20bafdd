"""The examples in the docstrings of the Python API run as they stand."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

import fedcore.api.checks
import fedcore.api.simulating

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("module", [fedcore.api.simulating, fedcore.api.checks], ids=lambda module: module.__name__)
def test_examples_run(module: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testmod(module)  # type: ignore[arg-type]
    assert (failed, tried > 0) == (0, True)
