"""A Cox regression from sums over all sites' risk sets, at groups of times that hold enough events."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from fedcore.data.regression.checks import small_stratum
from fedcore.data.regression.design import complete_design, complete_rows
from fedcore.data.regression.newton import Regression, fit
from fedcore.data.regression.question import RegressionQuery
from fedcore.data.regression.step import LARGEST, RegressionStep, Sums
from fedcore.data.statistics import LEAST_IN_CELL
from fedcore.data.survival.curves import ask_counts
from fedcore.data.survival.partial import block_length, block_sums, efron
from fedcore.data.survival.question import ROOM, CountStep
from fedcore.data.survival.times import Array, TimeGroups, pieces
from fedcore.errors import AppError, ConfigurationError, RoundFailed
from fedcore.system.plain_json import NO_OTHER_KEYS

MOST_PIECES: Final = 64
"""Queries for the sums at one set of coefficients."""
_FRACTION: Final = 2.0**30
_GROWTH: Final = 2.0**8
"""How many times as large as before a sum may be at the next coefficients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoxStep:
    """One query: a part of the block sums over all strata's rows at risk and with an event, in a row.

    step: the coefficients.
    groups: groups of times of each stratum.
    first, last: the first of the sums, and the first that is not asked for.
    bits: the sums are multiplied by 2 ** bits, so that little of them is lost in fixed-point numbers.
    """

    __pydantic_config__ = NO_OTHER_KEYS

    step: RegressionStep
    groups: tuple[TimeGroups, ...]
    first: int
    last: int
    bits: int

    def __post_init__(self) -> None:
        if self.step.query.survival is None or not 0 <= self.first < self.last or not -64 <= self.bits <= 64:
            raise ConfigurationError("the query is no step of a Cox regression")

    @property
    def head(self) -> int:
        """Numbers before the sums: of rows, and two parts of each sum over the rows with an event."""
        return 1 + 2 * self.step.query.size

    @property
    def length(self) -> int:
        """How many numbers a client answers."""
        return self.head + self.last - self.first

    def answer(self, columns: Mapping[str, ArrayLike]) -> list[float]:
        """One client's numbers [length]; raises AppError for a column that is missing or holds no numbers."""
        query, times = self.step.query, self.step.query.times
        used, rows = complete_rows(query, columns), times.rows(columns)
        scaled, eta = self.step.scaled(complete_design(query, columns, used))
        cell = times.cells_of(rows.time[used])
        censored = times.censored(rows.event[used], cell)
        until, died = np.zeros(len(cell), np.int64), np.zeros(len(cell), np.bool_)
        offset = 0
        for number, group in enumerate(self.groups):
            inside = rows.group[used] == number
            some, happened = group.at_risk(cell[inside], censored[inside])
            until[inside], died[inside] = np.where(some > 0, offset + some - 1, -1), happened
            offset += len(group.ends)
        block = block_length(query.size - 1)
        start, count = self.first // block, -(-self.last // block) - self.first // block
        weight, x = np.exp(np.minimum(eta, 300.0)), scaled[:, 1:]
        sums = [
            block_sums(slots - start, weight, x, count).reshape(-1)
            for slots in (until, np.where(died, offset + until, -1 - 2 * offset))
        ]
        numbers = (sums[0] + sums[1])[self.first - start * block : self.last - start * block] * 2.0**self.bits
        totals = np.concatenate([[float(eta[died].sum())], x[died].sum(axis=0)])
        parts = np.clip(np.floor(totals), -LARGEST, LARGEST)
        head = [[float(len(cell))], parts, (totals - parts) * _FRACTION]
        cut = np.clip(np.nan_to_num(numbers, nan=LARGEST), -LARGEST, LARGEST)
        answer: list[float] = np.concatenate([*head, cut]).tolist()
        return answer


Ask = Callable[[RegressionStep | CountStep | CoxStep], tuple[Sequence[float], int]]
"""Gives the sums over clients, and how many these are."""


def fit_cox(query: RegressionQuery, ask: Ask, *, nodes: int) -> Regression:
    """The regression, by one query after another; raises what `fit` does."""
    sums = _CoxSums(query, ask)
    result = fit(query, sums, nodes=nodes)
    return replace(result, events=sums.events or result.events, times=sums.size, queries=sums.queries)


class _CoxSums:
    """Answers the steps of `fit`: moments first, then the partial likelihood at groups of times that it finds."""

    def __init__(self, query: RegressionQuery, ask: Ask) -> None:
        self._query = query
        self._ask_one = ask
        self._groups: tuple[TimeGroups, ...] = ()
        self._died: list[Array] = []
        self._first: Sums | None = None
        self._bound = 0.0
        self.queries = 0

    @property
    def size(self) -> int:
        """Groups of times of all strata."""
        return sum(len(group.ends) for group in self._groups)

    @property
    def events(self) -> int:
        """Of all these groups."""
        return round(sum(float(died.sum()) for died in self._died))

    def __call__(self, step: RegressionStep) -> Sums:
        if not step.profile or self._query.sites:
            sums = step.sums(*self._ask(step))
            self._first = self._first or sums
            return sums
        if self._first is None:
            raise ConfigurationError("a Cox regression begins with moments")
        if not self._groups:
            self._find_groups(self._first)
        return self._combined(step, self._first)

    def _ask(self, step: RegressionStep | CountStep | CoxStep) -> tuple[Sequence[float], int]:
        self.queries += 1
        return self._ask_one(step)

    def _find_groups(self, first: Sums) -> None:
        """Groups of times from counts of events; strata without an event have none."""
        times = self._query.times
        counts, _ = ask_counts(times, CountStep.all_of(times, self._query), self._ask)
        if (counts.clients, counts.rows) != (first.clients, first.rows):
            raise _other_clients()
        for (label, _), events, censored in zip(times.groups, counts.events, counts.censored, strict=True):
            total, happened = events.sum() + censored.sum(), events.sum()
            group = TimeGroups.of(events, censored)
            if 0 < total < LEAST_IN_CELL or (happened and not group.ends):
                raise small_stratum(label if len(times.groups) > 1 else "", self._query.target_name)
            self._groups += (group,)
            self._died.append(group.counts(events, censored)[1])
        if not self.size:
            raise small_stratum("", self._query.target_name)
        if np.count_nonzero(np.sum(counts.events, axis=0)) == 1:
            raise ConfigurationError(
                f"all rows with {self._query.target_name} = 1 are at one point of the grid of times, which has "
                f"{times.cells} cells up to {times.high:g}; give bounds of {times.time_name} that suit its values, or "
                "ask for a logistic regression if the times are the same",
                check="one-time",
            )
        if len(self._pieces()) > MOST_PIECES:
            raise ConfigurationError(
                f"the risk sets of {self.size} times and {self._query.size - 1} coefficients are {self._length} "
                f"numbers, more than {MOST_PIECES} queries for each step hold; join times (--bins), or leave out terms",
                check="too-many-times",
            )
        self._bound = 16.0 * first.rows

    @property
    def _length(self) -> int:
        return 2 * self.size * block_length(self._query.size - 1)

    def _pieces(self) -> list[tuple[int, int]]:
        return pieces(self._length, ROOM - 1 - 2 * self._query.size)

    def _combined(self, step: RegressionStep, first: Sums) -> Sums:
        """The sums of a step, of the same rows as the first."""
        bits = int(min(max(math.floor(math.log2(LARGEST / (self._bound * _GROWTH))), -64), 64))
        steps = [CoxStep(step=step, groups=self._groups, first=a, last=b, bits=bits) for a, b in self._pieces()]
        answers = [(np.asarray(numbers, np.float64), clients) for numbers, clients in map(self._ask, steps)]
        heads = [numbers[: one.head] for one, (numbers, _) in zip(steps, answers, strict=True)]
        same = all(np.allclose(head, heads[0], rtol=1e-9, atol=4.0) for head in heads)
        if not same or any((clients, round(heads[0][0])) != (first.clients, first.rows) for _, clients in answers):
            raise _other_clients()
        numbers = np.concatenate([numbers[one.head :] for one, (numbers, _) in zip(steps, answers, strict=True)])
        if numbers.size != self._length:
            raise AppError(f"the answer has {numbers.size} sums over risk sets, and {self._length} were expected")
        rows, events = (numbers / 2.0**bits).reshape(2, self.size, -1)
        size = self._query.size
        totals = heads[0][1 : 1 + size] + heads[0][1 + size :] / _FRACTION
        likelihood, gradient, information = float(totals[0]), np.zeros(size), np.zeros((size, size))
        gradient[1:], information[0, 0] = totals[1:], first.clients
        offset = 0
        with np.errstate(all="ignore"):
            for died in self._died:
                part = slice(offset, offset + len(died))
                offset += len(died)
                more = efron(rows[part], events[part], died)
                likelihood, gradient[1:] = likelihood + more[0], gradient[1:] + more[1]
                information[1:, 1:] += more[2]
        cut = bool(np.abs(numbers).max() >= LARGEST) or not math.isfinite(likelihood)
        if not cut:
            self._bound = max(float(np.abs(rows).sum(axis=0).max()), 1.0)
        return replace(
            first, log_likelihood=likelihood, deviance=-2 * likelihood, gradient=gradient, information=information,
            cut_off=cut,
        )  # fmt: skip


def _other_clients() -> RoundFailed:
    return RoundFailed(
        "two queries of the regression were answered by other clients, or these have other rows now. Coefficients are "
        "of the same rows in all steps, so there is no result: ask again when all clients are there",
        check="other-clients",
    )
