"""Statistics of columns: how many values of a single person come out of `fedcore stats`, in one command and in two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Final

import numpy as np

from benchmarks.privacy.federation import Attacked
from benchmarks.privacy.reading import Reading
from fedcore.data.statistics import MOST_BINS, Column, StatisticsQuery
from fedcore.flower.apps.statistics import statistics_config

COLUMNS: Final = ("x3", "x0", "x2", "x5", "x7")
"""Cholesterol, age, blood pressure, heart rate and depression, in standard deviations."""
WIDE: Final = 8.0
"""No value is farther from the mean."""


async def many_bins(fed: Attacked, size: int) -> Reading:
    """One command with as many cells as there may be, as the command shows them."""
    return await _cells(fed, size, lambda column: _groups(column.coarse().cells))


async def many_bins_of_the_sum(fed: Attacked, size: int) -> Reading:
    """The same as the server sees it: one that lies, or its operator's own ServerApp."""
    return await _cells(fed, size, lambda column: column.cells)


async def _cells(fed: Attacked, size: int, counts: Callable[[Column], Iterable[float]]) -> Reading:
    reading = Reading()
    for name in COLUMNS[: max(1, size // 4)]:
        for column in await _asked(fed, StatisticsQuery.of({name: (-WIDE, WIDE)}, bins=MOST_BINS)):
            reading.singles += sum(round(count) == 1 for count in counts(column))
    return reading


def _groups(cells: Iterable[float]) -> Iterator[float]:
    """How many values the cells hold that are shown as one: those next to each other with the same number."""
    for value, run in groupby(cells):
        yield value * len([*run])


async def two_commands(fed: Attacked, size: int) -> Reading:
    """Two cells in each command, whose border moves: what two commands differ by is who lies between."""
    reading = Reading()
    below: dict[str, list[float]] = {name: [] for name in COLUMNS}
    for border in np.linspace(-3.0, 3.0, 2 * size + 1):
        question = StatisticsQuery.of(dict.fromkeys(COLUMNS, (border - WIDE, border + WIDE)), bins=2)
        for column in await _asked(fed, question):
            below[column.name].append(column.coarse().cells[0])
    for counts in below.values():
        reading.singles += sum(round(later - earlier) == 1 for earlier, later in pairwise(counts))
    return reading


async def _asked(fed: Attacked, question: StatisticsQuery) -> Sequence[Column]:
    """The answer of all clients; none if they refuse."""
    config = dict(statistics_config(question))
    release = await fed.sum(fed.ask(run="query", message_type="query.statistics", configs={"statistics": config}))
    if release is None:
        return ()
    sums = release.decoded.metrics
    return [question.column(name, at, sums[f"statistics/{name}"]) for at, name in enumerate(question.names)]
