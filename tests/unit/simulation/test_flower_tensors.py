"""Apps of tests/flower_apps whose tensors are not all float32, secure next to plain."""

from __future__ import annotations

import pytest
from support.flower_rows import SECURE_TOLERANCE, Row, difference, simulated

HALF = 2.0**-10
"""Flower's FedAvg adds float16 up in float16, and rounds after each client; a secure sum is rounded once."""
COUNTERS = ("steps", "seen", "table", "offset")


@pytest.mark.parametrize(
    ("row", "tolerance"),
    [
        (Row(title="counters", module="dtypes", server="integers", client="counting"), SECURE_TOLERANCE),
        (Row(title="bfloat16 as float32", module="narrow"), SECURE_TOLERANCE),
        (Row(title="float16", module="dtypes", server="halves", client="half"), HALF),
    ],
    ids=["integers", "bfloat16", "float16"],
)
def test_secure_gives_what_plain_gives(row: Row, tolerance: float) -> None:
    """The dtypes of the strategy's result as well."""
    plain, secure = simulated(row, "plain"), simulated(row, "secure")
    assert plain.found
    assert secure.found
    assert secure.found.get("kinds") == plain.found.get("kinds")
    assert difference(secure.found, plain.found) <= tolerance
    for name in COUNTERS:
        assert secure.found["arrays"].get(name) == plain.found["arrays"].get(name)


def test_a_count_that_differs_between_sites_is_rounded() -> None:
    """By half a unit at most in each round."""
    row = Row(title="counts", module="dtypes", server="integers", client="counting_unequally")
    plain, secure = simulated(row, "plain").found, simulated(row, "secure").found
    assert plain
    assert secure
    (steps,), (exact,) = secure["arrays"]["steps"], plain["arrays"]["steps"]
    assert 0 < abs(steps - exact) <= 2 * 0.5
    assert secure["arrays"]["seen"] == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("aggregation", ["plain", "secure"])
@pytest.mark.parametrize(("server", "client"), [("raw_server", "client"), ("server", "raw_client")])
def test_a_record_of_bfloat16_is_refused_by_its_rule_and_line(
    aggregation: str, server: str, client: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """In one line, without the traceback of NumPy's refusal."""
    outcome = simulated(Row(title="bfloat16", module="narrow", server=server, client=client), aggregation)
    assert outcome.refused
    for word in ("flower_apps/narrow.py:", "bfloat16", "tensor.float()"):
        assert word in outcome.error
    assert "Traceback" not in capfd.readouterr().err
