"""A federation of three clients, made anew for each test that wants to break it."""

from __future__ import annotations

import hashlib
import shutil
from datetime import UTC, datetime
from itertools import count

import pytest

from fedcore.federation import provision

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def fixed_randomness(seed: bytes = b"seed"):
    """Bytes that repeat in every run: SHAKE-256 of a counter."""
    numbers = count()
    return lambda size: hashlib.shake_256(seed + next(numbers).to_bytes(4, "big")).digest(size)


@pytest.fixture(scope="session")
def _template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("template") / "pilot"
    provision(folder, name="pilot", clients=3, now=NOW, randomness=fixed_randomness())
    return folder


@pytest.fixture
def federation(_template, tmp_path):
    """The folder of a fresh copy."""
    folder = tmp_path / "pilot"
    shutil.copytree(_template, folder)
    return folder


@pytest.fixture
def client(federation):
    """The folder of the second client's kit."""
    return federation / "clients" / "client-2"
