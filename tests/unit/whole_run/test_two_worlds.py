"""Two worlds in which two honest clients have each other's data: an adversary cannot tell them apart.

It controls the server and the operator: run config, settings, models, cohorts, how often it asks, and whom it calls
lost. What it sees of whole clients, the masks aside, is the same byte for byte; and so is every sum of both of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.worlds.asks import Ask
from support.worlds.data import HUGE, OUTCOMES, Data
from support.worlds.plans import asks, near_asks, outcomes
from support.worlds.play import compare

A, B = Data(records=(0.5, -0.25), examples=172, secret=0.125), Data(records=(1.5,), examples=30, secret=-0.5)
OTHERS = {3: Data(examples=199), 4: Data(examples=85)}
THOROUGH = settings().max_examples > 25
PHASES = [phase for phase in Phase if THOROUGH or phase is not Phase.shrink]


@pytest.mark.timeout(1800)  # as many examples as the profile asks for
# An example is a run of four clients in two worlds, so a few have to do in the quick profile.
@given(data=st.data())
@settings(
    max_examples=settings().max_examples if THOROUGH else 4, phases=PHASES, suppress_health_check=list(HealthCheck)
)
async def test_no_adversary_tells_them_apart(stock: Any, tmp_path: Path, data: st.DataObject) -> None:
    clients = {1: data.draw(outcomes()), 2: data.draw(outcomes()), **OTHERS}
    _, found = await compare(data.draw(asks()), clients, stock, tmp_path)
    assert found == []


@pytest.mark.timeout(1800)
@given(data=st.data())
@settings(
    max_examples=settings().max_examples if THOROUGH else 2, phases=PHASES, suppress_health_check=list(HealthCheck)
)
async def test_two_runs_that_come_near_tell_no_more(stock: Any, tmp_path: Path, data: st.DataObject) -> None:
    clients = {1: data.draw(outcomes()), 2: data.draw(outcomes()), **OTHERS}
    _, found = await compare(data.draw(near_asks()), clients, stock, tmp_path)
    assert found == []


REPORTS: Sequence[dict[str, Any]] = (
    {"examples": 2**17 + 1},
    {"examples": -1},
    {"metrics": {"acc": math.nan}},
    {"metrics": {"acc": 2.0**20 + 1}},
    {"metrics": {"acc": 0.5}},
    {"metrics": {"losses": [0.5, 0.25]}},
    {"metrics": {"losses": []}},
    {"metrics": {"n" * 201: 0.5}},
    {"metrics": {f"m{i}": 0.5 for i in range(40)}},
    {"records": ()},
    {"secret": HUGE},
)
ODD = [*({"outcome": outcome} for outcome in OUTCOMES[1:]), *REPORTS]


def _name(pair: Sequence[dict[str, Any]]) -> str:
    return ", ".join(str(odd)[:30] for odd in pair)


@pytest.mark.parametrize("outcome", ["fine", "app-raises", "killed", "not-eligible"])
async def test_a_query_is_answered_alike_whatever_becomes_of_it(stock: Any, tmp_path: Path, outcome: str) -> None:
    clients = {1: replace(A, outcome=outcome), 2: B, **OTHERS}
    view, found = await compare([Ask(message_type="query.age")], clients, stock, tmp_path)
    assert found == []
    (release,) = view.releases
    assert release is not None
    assert release.survivors == (1, 2, 3, 4)
    if outcome == "fine":
        assert release.decoded.metrics["rows/count"] == 172 + 30 + 199 + 85


@pytest.mark.parametrize("odd", [{"examples": 2**41}, {"metrics": {"rows/age": math.nan}}, {"metrics": {"wards": []}}])
async def test_a_number_that_no_sum_takes_is_nobodys(stock: Any, tmp_path: Path, odd: dict[str, Any]) -> None:
    clients = {1: replace(A, **odd), 2: B, **OTHERS}
    view, found = await compare([Ask(message_type="query.age")], clients, stock, tmp_path)
    assert found == []
    assert view.releases[0].failures == 1


async def test_no_queries_together_leave_one_client_apart(stock: Any, tmp_path: Path) -> None:
    """Another question, another model, another run: sums over all and over all but one would give that one."""
    clients = {1: A, 2: B, **OTHERS}
    asked = [
        Ask(message_type="query.age"),
        Ask(message_type="query.weight", cohort=(1, 2, 3)),
        Ask(message_type="query", model={"shift": 1.0}, run="run-2", drops={4: "input"}),
        Ask(message_type="query.age", configs={"config": {"anything": 7}}),
    ]
    view, found = await compare(asked, clients, stock, tmp_path)
    assert found == []
    assert [release is not None and release.survivors for release in view.releases] == [
        (1, 2, 3, 4),
        False,
        False,
        (1, 2, 3, 4),
    ]


@pytest.mark.parametrize("pair", [ODD[at : at + 2] for at in range(0, len(ODD), 2)], ids=_name)
async def test_whatever_becomes_of_the_local_work(stock: Any, tmp_path: Path, pair: Any) -> None:
    """Two clients in each world, to save half of the exchanges."""
    one, other = (replace(data, **odd) for data, odd in zip((A, B), (*pair, {}), strict=False))
    kind = "evaluate" if "unasked-model" in (one.outcome, other.outcome) else "train"
    view, found = await compare([Ask(message_type=kind)], {1: one, 2: other, **OTHERS}, stock, tmp_path)
    assert found == []
    assert view.releases[0].survivors == (1, 2, 3, 4)
