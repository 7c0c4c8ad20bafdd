"""A federation in real processes, over real TLS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.deployment import Deployment
from support.simulated import simulate

__all__ = ["federation", "simulate"]


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One server and four clients with the tiny app."""
    with Deployment.open(tmp_path_factory.mktemp("four")) as deployment:
        deployment.start()
        yield deployment


@pytest.fixture
def federation(four: Deployment) -> Deployment:
    """All of them run before each test, whatever the last one did."""
    return four.revive()
