"""The comparison of two worlds can fail: with one fix taken out at a time it finds what that fix is for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.worlds.asks import Ask
from support.worlds.data import LAYOUTS, Data, dead_model, make_model
from support.worlds.plans import REPEAT
from support.worlds.play import compare

COUNTS = {1: Data(examples=172, records=(0.5,)), 2: Data(examples=30, records=(1.5,)), 3: Data(), 4: Data()}
ANY_KEY = {"*": True}


@pytest.mark.parametrize(
    "ask",
    [
        Ask(settings={"w-max": 100}),
        Ask(settings={"metric-max": 1.0}),
        Ask(model={"w": 1.0, "b": 1.0}),
        Ask(encoding={"metrics": (("loss", None),)}),
    ],
    ids=["w-max", "metric-max", "crafted model", "odd metric names"],
)
async def test_failures_that_are_told(owned: Callable[..., Any], tmp_path: Path, ask: Ask) -> None:
    """Points 1 and 5: who may tell why its local work failed tells its data, be it the names of its metrics."""
    kits = owned(report_failures=True, allow_config=ANY_KEY)
    odd = {1: replace(COUNTS[1], metrics={"zz": 1.0})} if ask.encoding else {}
    _, found = await compare([ask], COUNTS | odd, kits, tmp_path)
    assert any("update-refused" in text for text in found)


async def test_differences_of_one_client(owned: Callable[..., Any], tmp_path: Path) -> None:
    """Point 2: the same model twice, and the server says that one client was lost."""
    kits = owned(allow_differencing=True)
    _, found = await compare([Ask(), Ask(drops={3: "input"})], COUNTS, kits, tmp_path)
    assert any(text.endswith("give that of [3]") for text in found)


async def test_who_leaves_makes_the_difference(owned: Callable[..., Any], tmp_path: Path) -> None:
    """Points 1 and 2 together: w-max just below the largest count takes that client out of the second sum."""
    kits = owned(report_failures=True, allow_config=ANY_KEY, allow_differencing=True)
    _, found = await compare([Ask(), Ask(settings={"w-max": 171})], COUNTS, kits, tmp_path)
    assert any(text.endswith("give that of [1]") for text in found)


async def test_time_for_all_but_the_slowest(owned: Callable[..., Any], tmp_path: Path, monkeypatch: Any) -> None:
    """Point 2 by the clock, where any time will do."""
    monkeypatch.setattr("fedcore.federation.admission.tasks.LEAST_TIME", 0.0)
    slow = {number: replace(data, seconds=data.examples / 10) for number, data in COUNTS.items()}
    _, found = await compare([Ask(), Ask(task={"seconds": 10.0})], slow, owned(), tmp_path)
    assert any(text.endswith("of (1, 2, 3, 4) [0, 1] failed") for text in found)


async def test_a_request_that_follows_from_the_data(
    owned: Callable[..., Any], tmp_path: Path, monkeypatch: Any
) -> None:
    """Point 1 once more: the function that decides whether a failure is told."""
    monkeypatch.setattr("client_app.exchange.local_update.tells_failures", lambda task, policy: True)
    _, found = await compare([Ask(model={"w": 1.0, "b": 1.0})], COUNTS, owned(), tmp_path)
    assert any("withdrawal" in text for text in found)


async def test_sums_that_nobody_compares(owned: Callable[..., Any], tmp_path: Path, monkeypatch: Any) -> None:
    """Point 2 once more: the function that puts a sum beside those before."""
    monkeypatch.setattr("fedcore.federation.admission.releases.check_smallest_group", lambda *_: None)
    _, found = await compare([Ask(), Ask(drops={3: "input"})], COUNTS, owned(), tmp_path)
    assert any(text.endswith("give that of [3]") for text in found)


async def test_models_in_another_layout(unchanged: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """The same tensors in another order, by another name, or next to one that nobody uses."""
    monkeypatch.setattr("fedcore.federation.admission.admit.check_layout", lambda *_: None)
    later = Ask(model={"shift": 1.0})
    for layout in LAYOUTS:
        asks = [Ask(), later, replace(later, state=make_model(shift=1.0, layout=layout), drops={3: "input"})]
        _, found = await compare(asks, COUNTS, unchanged, tmp_path)
        assert any(text.endswith("give that of [3]") for text in found), layout


NEAR = [
    Ask(run=run, model={"shift": shift}, drops=drops)
    for run, shift, drops in (("a", 0.0, {}), ("a", 0.5, {}), ("b", 0.0, {}), ("b", 0.51, {3: "input"}))
]


async def test_nearly_the_same_model_in_two_runs(owned: Callable[..., Any], tmp_path: Path, monkeypatch: Any) -> None:
    """Point 2 of models that nobody compares by their distance."""
    _, found = await compare(NEAR, COUNTS, owned(), tmp_path)
    assert found == []
    monkeypatch.setattr("fedcore.federation.admission.admit.counts_near_models", lambda *_: False)
    _, found = await compare(NEAR, COUNTS, owned(), tmp_path)
    assert any(text.endswith("give that of [3]") for text in found)


async def test_two_versions_in_a_buffered_sum(owned: Callable[..., Any], tmp_path: Path, monkeypatch: Any) -> None:
    """Pasquini et al. 2022: three clients train from a model that teaches nothing, whose version no sum has made."""
    starts = {client: (1, dead_model()) for client in (1, 3, 4)} | {2: (0, make_model())}
    buffered = [Ask(settings={"asynchrony": "buffered"}, state=dead_model(), starts=starts)]
    for policy in ({}, {"allow_buffered": True}):
        view, found = await compare(buffered, COUNTS, owned(allow_config=ANY_KEY, **policy), tmp_path)
        assert (view.releases, found) == ([None], [])
    monkeypatch.setattr("fedcore.federation.admission.admit.check_versions", lambda *_: None)
    _, found = await compare(buffered, COUNTS, owned(allow_config=ANY_KEY, allow_buffered=True), tmp_path)
    assert any("the sums over (1, 2, 3, 4) differ" in text for text in found)


async def test_a_failure_that_is_tried_anew(owned: Callable[..., Any], tmp_path: Path, monkeypatch: Any) -> None:
    """One that fails by chance in the first of two attempts is what the second has more."""
    monkeypatch.setattr("client_app.records.result_cache.ResultCache.has", lambda cache, task: False)
    flaky = {**COUNTS, 1: replace(COUNTS[1], outcome="out-of-memory", recovers=True)}
    _, found = await compare([Ask(), Ask(task=REPEAT)], flaky, owned(), tmp_path)
    assert any(text.endswith("of (1, 2, 3, 4) [0, 1] failed") for text in found)
