"""Federations in real processes, over real TLS, one for each module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.deployment import Deployment


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One server and four clients with the tiny app, shared by the module."""
    with Deployment.open(tmp_path_factory.mktemp("four")) as deployment:
        deployment.start_server()
        deployment.start_clients()
        yield deployment


@pytest.fixture
def federation(four: Deployment) -> Deployment:
    """The module's federation with all four clients running, whatever the test before did to them."""
    four.revive()
    return four


@pytest.fixture
def provisioned(tmp_path: Path) -> Iterator[Deployment]:
    """Two kits and nothing started."""
    with Deployment.open(tmp_path, clients=2) as deployment:
        yield deployment
