"""The rule of groups over sequences of cohorts: no combination of the sums that it lets through tells of a few."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from fedcore.errors import ProtocolViolation
from fedcore.federation.admission.releases import check_smallest_group

LEAST = 3
COHORTS = st.lists(st.frozensets(st.integers(1, 10), min_size=LEAST), max_size=8)


def released(cohorts: list[frozenset[int]]) -> list[frozenset[int]]:
    """Those that the members agree to, one after the other."""
    given_sums: list[frozenset[int]] = []
    for cohort in cohorts:
        try:
            check_smallest_group(set(given_sums), cohort, LEAST, 0, queries=True)
        except ProtocolViolation:
            continue
        given_sums.append(cohort)
    return given_sums


def tells_of(few: frozenset[int], sums: list[frozenset[int]]) -> bool:
    """Whether some combination of the sums has these clients in it and nobody else."""
    rows = np.array([[client in one for client in range(1, 11)] for one in sums], float)
    others = [client not in few for client in range(1, 11)]
    return bool(np.linalg.matrix_rank(rows[:, others]) < np.linalg.matrix_rank(rows))


@given(cohorts=COHORTS)
@example(cohorts=[frozenset({1, 2, 3, 6}), frozenset({4, 5, 6}), frozenset({2, 3, 7, 8}), frozenset({4, 5, 7, 8})])
@example(cohorts=[frozenset({1, 2, 3, 4}), frozenset({1, 2, 3, 5, 6, 7, 8, 9, 10}), frozenset({5, 6, 7, 8, 9, 10})])
@example(cohorts=[frozenset({1, 2, 3}), frozenset({1, 2, 4})])
def test_no_combination_of_sums_is_of_fewer_than_the_least(cohorts: list[frozenset[int]]) -> None:
    sums = released(cohorts)
    assert sums[:1] == cohorts[:1], "a first sum is over enough"
    for size in range(1, LEAST):
        for few in itertools.combinations(range(1, 11), size):
            assert not sums or not tells_of(frozenset(few), sums), (few, sums)


@given(
    stay=st.sampled_from([0, LEAST, LEAST + 1]),
    left=st.sampled_from([0, LEAST, LEAST + 1]),
    come=st.sampled_from([0, LEAST, LEAST + 1]),
)
def test_none_or_enough_stay_leave_and_come(stay: int, left: int, come: int) -> None:
    numbers = iter(range(100))
    staying, leaving, coming = (frozenset(itertools.islice(numbers, count)) for count in (stay, left, come))
    if staying | leaving and staying | coming:
        assert released([staying | leaving, staying | coming]) == [staying | leaving, staying | coming]


def test_one_fewer_and_it_is_refused() -> None:
    before = frozenset(range(1, 7))
    assert released([before, frozenset({1, 2, 3, 4})]) == [before], "two leave"
    assert released([before, before | {7, 8}]) == [before], "two come"
    assert released([before, frozenset({1, 2, 7, 8, 9})]) == [before], "two stay"
