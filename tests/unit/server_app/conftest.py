"""A federation of four, and a server without a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from support.serverside import Site, site
from support.services import federation

from fedcore.federation import FederationFolder
from fedcore.state import ModelState

__all__ = ["federation", "here", "model"]


@pytest.fixture
async def here(federation: FederationFolder, tmp_path: Path) -> AsyncIterator[Site]:
    """A server whose ServerApp is the test."""
    async with site(federation, tmp_path) as made:
        yield made


@pytest.fixture
def model() -> ModelState:
    rng = np.random.default_rng(1)
    return ModelState.from_arrays(
        {
            "weight": rng.normal(size=(300, 7)).astype(np.float32),
            "half": np.array([0.5, -2.0], np.float16),
            "counter": np.array(3, np.int64),
        }
    )
