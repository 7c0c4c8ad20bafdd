"""Tests of training draw from one seed, and share ranks that stay for all tests of a module."""

from collections.abc import Iterator

import pytest
from support.seeded import drawn_from_one_seed

from tests.support.ranks import Ranks

__all__ = ["drawn_from_one_seed"]


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    with Ranks(2) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    with Ranks(4) as ranks:
        yield ranks
