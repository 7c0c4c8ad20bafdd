"""Kits as `provision` writes them, and with an owner's changes to the policy.

The adversary of `support.worlds` asks of models of its own making, and what it learns of them is the subject of most
tests: so those owners take any first model. `unchanged` are the kits of owners who do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from fedcore.federation import ClientKit, provision
from fedcore.federation.policy import ANY_MODEL

Kits = Mapping[int, ClientKit]


@pytest.fixture(scope="session")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Kits:
    """Four clients whose owners changed nothing."""
    made = provision(tmp_path_factory.mktemp("stock") / "fed", name="testing", clients=4, now=datetime.now(UTC))
    return {number: ClientKit.load(folder) for number, folder in enumerate(made.clients, start=1)}


@pytest.fixture(scope="session")
def stock(unchanged: Kits) -> Kits:
    """The same, but that they take any first model."""
    return with_policy(unchanged, first_models=(ANY_MODEL,))


@pytest.fixture
def owned(stock: Kits) -> Callable[..., Kits]:
    """The same with other values in every owner's policy."""

    return partial(with_policy, stock)


def with_policy(kits: Kits, **policy: Any) -> Kits:
    return {number: replace(kit, policy=replace(kit.policy, **policy)) for number, kit in kits.items()}
