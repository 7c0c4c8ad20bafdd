"""Which rank a message names when a step takes too long."""

from __future__ import annotations

import asyncio

import pytest

from client_app.ranks.failures import RankFailed
from client_app.ranks.messages import Progress
from client_app.ranks.progress import TaskProgress
from tests.support.raising import raises

SECONDS = 4.0


@pytest.mark.parametrize("reports_of_second", [0, 1])
async def test_a_rank_that_stops_is_named_also_before_its_first_report(
    reports_of_second: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    progress = TaskProgress(SECONDS, lambda steps, still: None)
    progress.expect(range(2))
    with raises(RankFailed, check="rank-hung", numbers=(1, 4, 0 if not reports_of_second else 7)):
        for second in range(9):
            now = float(second)
            progress.take(0, Progress(steps=7, parts=0, in_loop=True))
            if second < reports_of_second:
                progress.take(1, Progress(steps=7, parts=0, in_loop=True))
            progress.look()
