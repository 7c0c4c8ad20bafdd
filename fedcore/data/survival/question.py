"""What survival curves ask of every client: how many rows have an event, or are censored, at each point of the grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from fedcore.data.regression.design import complete_rows
from fedcore.data.regression.question import MOST_VALUES, RegressionQuery
from fedcore.data.survival.times import Array, SurvivalTimes, pieces
from fedcore.errors import AppError, ConfigurationError
from fedcore.system.plain_json import NO_OTHER_KEYS

_HEAD: Final = 5
ROOM: Final = MOST_VALUES - 1
"""Numbers of a query, one less than there may be: the others are how many clients answer."""
MOST_GROUPS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivalQuery:
    """Survival curves of groups of rows.

    times: the columns, the grid and the groups.
    by: the column that makes the groups, in the output; "" for all rows together.
    """

    __pydantic_config__ = NO_OTHER_KEYS

    times: SurvivalTimes
    by: str = ""

    def __post_init__(self) -> None:
        if len(self.times.groups) > MOST_GROUPS:
            raise ConfigurationError(
                f"{self.by} makes {len(self.times.groups)} groups, and there are {MOST_GROUPS} curves at most",
                check="too-many-groups",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CountStep:
    """One query: some of the counts [groups, 2, cells + 2] of `SurvivalTimes.count`, in a row.

    first, last: the first of them, and the first that is not asked for.
    design: of a regression, whose complete rows alone are counted; None for all rows.
    """

    __pydantic_config__ = NO_OTHER_KEYS

    times: SurvivalTimes
    first: int
    last: int
    design: RegressionQuery | None = None

    @classmethod
    def all_of(cls, times: SurvivalTimes, design: RegressionQuery | None = None) -> list[CountStep]:
        """As many queries as are needed."""
        length = len(times.groups) * 2 * (times.cells + 2)
        return [cls(times=times, first=a, last=b, design=design) for a, b in pieces(length, ROOM - _HEAD)]

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.last <= len(self.times.groups) * 2 * (self.times.cells + 2):
            raise ConfigurationError("the query asks for counts that there are not")

    @property
    def length(self) -> int:
        """How many numbers a client answers."""
        return _HEAD + self.last - self.first

    def answer(self, columns: Mapping[str, ArrayLike]) -> list[float]:
        """One client's numbers [length]; raises AppError for a column that is missing or holds no numbers."""
        rows = self.times.rows(columns)
        used = rows.used if self.design is None else complete_rows(self.design, columns)
        head = [
            np.count_nonzero(used),
            len(used) - np.count_nonzero(used | rows.negative),
            np.count_nonzero(rows.negative),
            np.count_nonzero(~np.isin(rows.event[used], (0.0, 1.0))),
            self.times.off_grid(rows.time[used]),
        ]
        counts = self.times.count(rows, used).reshape(-1)[self.first : self.last]
        numbers: list[float] = np.concatenate([head, counts]).tolist()
        return numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The sums over clients.

    clients: how many contributed.
    rows, missing, negative: rows that count, rows that lack a value, and times below 0.
    wrong: rows whose event is neither 0 nor 1.
    between: times that lie between the points of the grid.
    events, censored: rows of each group at each point [groups, cells + 2].
    """

    clients: int
    rows: int
    missing: int
    negative: int
    wrong: int
    between: int
    events: Array
    censored: Array

    @classmethod
    def of(cls, times: SurvivalTimes, answers: Sequence[tuple[Sequence[float], int]]) -> Counts:
        """Out of numbers and clients of each query; the numbers before the counts have to be the same in all."""
        head = np.round(answers[0][0][:_HEAD])
        numbers = np.concatenate([np.round(sums[_HEAD:]) for sums, _ in answers])
        if numbers.size != len(times.groups) * 2 * (times.cells + 2):
            raise AppError(f"the answer has {numbers.size} counts of times, which is another number than was asked for")
        events, censored = np.moveaxis(numbers.reshape(len(times.groups), 2, -1), 1, 0)
        rows, missing, negative, wrong, between = head.astype(int).tolist()
        return cls(
            clients=answers[0][1], rows=rows, missing=missing, negative=negative, wrong=wrong, between=between,
            events=events, censored=censored,
        )  # fmt: skip

    @staticmethod
    def same_rows(one: tuple[Sequence[float], int], other: tuple[Sequence[float], int]) -> bool:
        """Whether two queries are of the same clients and rows, as far as their sums tell."""
        return one[1] == other[1] and bool(np.array_equal(np.round(one[0][:_HEAD]), np.round(other[0][:_HEAD])))
