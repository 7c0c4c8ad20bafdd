"""Federations in real processes, over real TLS, a few for each module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.deployment import Deployment
from support.lanes import Lane, Lanes
from support.simulated import simulate

__all__ = ["simulate"]

FEDERATIONS = 3
"""As many as keep two cores busy while the tests wait."""


@contextmanager
def four(folder: Path) -> Iterator[Lane]:
    """One server and four clients with the tiny app; all clients run before each test, whatever the last one did."""
    with Deployment.open(folder) as federation:
        federation.start()
        yield federation.revive


@pytest.fixture(scope="module")
def lanes(request: pytest.FixtureRequest) -> Iterator[Lanes]:
    """A federation of four for each lane."""
    with Lanes.opened(request, four, count=FEDERATIONS) as opened:
        yield opened
