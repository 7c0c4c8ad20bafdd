"""A federation of four, a server in this process, and its operator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from support.serverside import Site, site
from support.services import federation

from client_app.operator import client
from fedcore.federation import FederationFolder
from fedcore.state import ModelState

__all__ = ["federation", "here", "model"]


@pytest.fixture
async def here(federation: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    """A server whose ServerApp is the test; nobody waits long for it."""
    monkeypatch.setattr(client, "AWAY_PAUSE", 0.01)
    monkeypatch.setattr(client, "FOLLOW_PAUSE", 0.0)
    async with site(federation, tmp_path) as made:
        yield made


@pytest.fixture
def model() -> ModelState:
    return ModelState.from_arrays({"weight": np.arange(6, dtype=np.float32)})
