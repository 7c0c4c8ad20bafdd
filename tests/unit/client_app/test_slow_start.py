"""Ranks on a machine that takes minutes to import torch, on a loop that skips the time in which nothing happens."""

from __future__ import annotations

import asyncio
import selectors
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from client_app.output import Output
from client_app.ranks.failures import RankFailed
from client_app.ranks.group import GroupSettings
from client_app.ranks.messages import Ready
from client_app.ranks.supervisor import LocalGroup

SHA256 = "a" * 64


class SkippingSelector(selectors.DefaultSelector):
    """Counts the seconds for which it would have waited, and does not wait."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0 if timeout else timeout)
        self.skipped += timeout if timeout and not ready else 0.0
        return ready


class SkippingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.selector = SkippingSelector()
        super().__init__(self.selector)

    def time(self) -> float:
        return super().time() + self.selector.skipped


@dataclass
class SlowRank:
    """Takes `seconds` until it has loaded the app."""

    seconds: float
    number: int = 0

    @property
    def process(self) -> SlowRank:
        return self

    async def wait(self) -> None:
        await asyncio.Event().wait()

    async def ask(self, *_: Any) -> Ready:
        await asyncio.sleep(self.seconds)
        return Ready(app_sha256=SHA256)

    def kill(self) -> None:
        """Nothing runs."""

    async def close(self) -> None:
        """Nothing is open."""


def started_in(seconds: float, folder: Path) -> None:
    async def start_rank(*_: Any) -> Any:
        return SlowRank(seconds)

    async def start() -> None:
        settings = GroupSettings(app=folder, app_sha256=SHA256, client_id=1, node_config={}, data_dir=None)
        group = LocalGroup(settings, Output(name="client-1", stream=StringIO()), start_rank=start_rank)
        try:
            await group.start()
        finally:
            await group.stop()

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(start())


def test_ranks_may_take_minutes_to_start(tmp_path: Path) -> None:
    started_in(500.0, tmp_path)


def test_ranks_that_never_get_ready_are_given_up(tmp_path: Path) -> None:
    with pytest.raises(RankFailed):
        started_in(3600.0, tmp_path)
