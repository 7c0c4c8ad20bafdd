"""A federation in real processes, over real TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture
def uneven(tmp_path: Path) -> Iterator[Deployment]:
    """Four clients with 1, 4, 16 and 64 examples."""
    with Deployment.open(tmp_path) as deployment:
        deployment.app = Path(__file__).parents[1] / "apps" / "uneven"
        deployment.start()
        yield deployment
