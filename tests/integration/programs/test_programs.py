"""Programs that users bring, on one rank and on two, against the same loop in bare PyTorch.

With `pytest -s` the largest differences are printed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest
from torch import Tensor

from tests.integration.programs import images, loops, tables, text
from tests.integration.programs.program import Program, by_fedcore, largest_difference
from tests.support.ranks import Ranks

ROOMS = (tables, loops, text, images)
NAMES = [(room.__name__, make.__name__) for room in ROOMS for make in room.PROGRAMS]
ALONE = {"survival"}
"""What is refused by name on two ranks: a loss over the whole batch."""


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    """Two ranks that run all of them."""
    with Ranks(2) as ranks:
        yield ranks


def program(room: str, name: str) -> Program:
    made: Program = getattr(importlib.import_module(room), name)()
    return made


def on_a_rank(room: str, name: str) -> dict[str, Tensor]:
    return by_fedcore(program(room, name))


@pytest.mark.parametrize(("room", "name"), NAMES, ids=[name for _, name in NAMES])
def test_a_program_is_the_same_as_in_bare_torch(two: Ranks, room: str, name: str) -> None:
    same = program(room, name)
    bare = same.bare()
    one_rank = largest_difference(by_fedcore(same), bare)
    two_ranks = None if name in ALONE else largest_difference(two.run(on_a_rank, room, name)[0], bare)
    shown = "refused by name" if two_ranks is None else f"{two_ranks:.1e}"
    sys.stdout.write(f"{same.name:<34} one rank {one_rank:.1e}   two ranks {shown}\n")
    assert one_rank <= same.bound
    assert two_ranks is None or two_ranks <= same.bound
