"""More clients than the strategy wants are asked: how many, who, and for what."""

from __future__ import annotations

from typing import Any

import pytest

from fedcore.errors import ConfigurationError
from fedcore.run.quorum import protection_for
from fedcore.run.requirements import choose_cohort, extra_clients
from fedcore.run.settings import JobSettings
from tests.support.raising import raises

EXTRA = {"over-selection": 0.3}


def test_a_fraction_of_a_client_is_a_whole_one() -> None:
    settings = JobSettings.from_mapping(EXTRA)
    assert [extra_clients(asked, settings) for asked in (1, 3, 10, 11)] == [1, 1, 3, 4]
    assert extra_clients(10, JobSettings()) == 0


@pytest.mark.parametrize(
    ("present", "size", "cohort"),
    [
        ((5, 4, 3, 2, 1), 3, (2, 4, 5)),  # those that are asked, though others are there
        ((3, 4, 2, 1), 3, (1, 2, 4)),  # another stands in for 5
        ((5, 4, 3, 2, 1), 4, (1, 2, 4, 5)),  # one more
        ((4,), 3, (4,)),
        ((), 3, ()),
    ],
)
def test_those_that_are_asked_come_first_and_others_stand_in(
    present: tuple[int, ...], size: int, cohort: tuple[int, ...]
) -> None:
    assert choose_cohort((2, 4, 5), present, size) == cohort


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"aggregation": "plain"}, ("needs-secure", "over-selection")),
        ({"dp-epsilon": 1.0, "dp-rounds": 2, "clip-norm": 1.0}, ("conflict", "over-selection")),
        ({"max-dropout": 0.2}, ("", r"max-dropout.*over-selection.*\b0\.2\b")),
        ({"over-selection": -0.1}, ("", "over-selection")),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], reason: tuple[str, str]) -> None:
    check, names = reason
    with raises(ConfigurationError, check=check, match=names):
        JobSettings.from_mapping(EXTRA | settings)


def test_the_graph_has_room_for_those_that_are_not_waited_for() -> None:
    """Three of thirteen are expected to drop out, beside those that do so anyway."""
    usual, more = (JobSettings.from_mapping(given) for given in ({}, EXTRA))
    assert more.dropout == pytest.approx(0.4 / 1.3)
    sizes = [protection_for(settings, 520) for settings in (usual, more)]
    assert sizes[0] is not None
    assert sizes[1] is not None
    assert sizes[1].degree > sizes[0].degree
