"""Kits as `provision` writes them, and with an owner's changes to the policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from fedcore.federation import ClientKit, provision

Kits = Mapping[int, ClientKit]


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Kits:
    """Four clients whose owners changed nothing."""
    made = provision(tmp_path_factory.mktemp("stock") / "fed", name="testing", clients=4, now=datetime.now(UTC))
    return {number: ClientKit.load(folder) for number, folder in enumerate(made.clients, start=1)}


@pytest.fixture
def owned(stock: Kits) -> Callable[..., Kits]:
    """The same with other values in every owner's policy."""

    def changed(**policy: Any) -> Kits:
        return {number: replace(kit, policy=replace(kit.policy, **policy)) for number, kit in stock.items()}

    return changed
