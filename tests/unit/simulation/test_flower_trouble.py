"""Apps of tests/flower_apps, secure next to plain: a client that fails or is late, and queries that add up."""

from __future__ import annotations

import pytest
from support.flower_rows import SECURE_TOLERANCE, Row, difference, simulated

SAME = (
    Row(title="one client's app raises", module="trouble", client="raising"),
    Row(title="several starts of one model", module="trouble", server="again", client="steady"),
    Row(title="a function that adds up histograms", module="partial_results", server="histograms"),
    Row(title="a function of means and deviations", module="partial_results", server="statistics"),
)


@pytest.mark.parametrize("row", SAME, ids=lambda row: row.title)
def test_secure_gives_what_plain_gives(row: Row) -> None:
    plain, secure = simulated(row, "plain"), simulated(row, "secure")
    assert plain.found
    assert difference(secure.found, plain.found) <= SECURE_TOLERANCE


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (Row(title="largest", module="partial_results", server="maxima"), "sum_only"),
        (Row(title="late", module="trouble", server="hurried", client="slow"), "too-short"),
    ],
    ids=["largest", "late"],
)
def test_what_secure_mode_cannot_do_is_refused_by_name(row: Row, reason: str) -> None:
    secure = simulated(row, "secure")
    assert secure.refused
    assert reason in secure.error
