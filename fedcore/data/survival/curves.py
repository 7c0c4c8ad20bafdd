"""Survival curves from counts: Kaplan and Meier's estimate, its intervals, medians, and the log-rank test.

Kaplan and Meier, JASA 53 (1958); the variance is Greenwood's, the interval that of log(-log S) (Kalbfleisch and
Prentice, 2002, section 1.4); the median's interval is Brookmeyer and Crowley's (Biometrics 38, 1982). A curve is one of
groups of times (`TimeGroups`); the log-rank test is of all points of the grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy import stats

from fedcore.data.statistics import LEAST_IN_CELL
from fedcore.data.survival.question import Counts, CountStep, SurvivalQuery
from fedcore.data.survival.times import Array, SurvivalTimes, TimeGroups
from fedcore.errors import ConfigurationError, RoundFailed

AskCounts: TypeAlias = Callable[[CountStep], tuple[Sequence[float], int]]
"""Gives the sums over clients, and how many these are."""
_HALF: float = 0.5 + 1e-12


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The curve of a group of rows.

    label: the group's.
    few: whether the curve is not given, since too few rows have an event, or are censored.
    rows: how many there are, 0 for fewer than `LEAST_IN_CELL`.
    events: up to the last of the times; 0 if there is no curve.
    times: at which events count [J]; 0 < J unless no row has an event.
    at_risk, died: rows at risk just before, and those with an event [J].
    """

    label: str
    few: bool
    rows: int
    events: int = 0
    times: tuple[float, ...] = ()
    at_risk: tuple[float, ...] = ()
    died: tuple[float, ...] = ()

    @classmethod
    def of(cls, label: str, times: SurvivalTimes, events: Array, censored: Array, least: int = LEAST_IN_CELL) -> Curve:
        """From the counts of each point, [cells + 2] each."""
        total, happened = round(events.sum() + censored.sum()), round(events.sum())
        groups = TimeGroups.of(events, censored, least)
        if total < least or (happened and not groups.ends):
            return cls(label=label, few=True, rows=total if total >= least else 0)
        at_risk, died = groups.counts(events, censored)
        return cls(
            label=label, few=False, rows=total, events=round(died.sum()),
            times=tuple(times.points[list(groups.ends)].tolist()),
            at_risk=tuple(at_risk.tolist()), died=tuple(died.tolist()),
        )  # fmt: skip

    @property
    def survival(self) -> Array:
        """The share of rows without an event after each of the times, float64 [J]."""
        return np.cumprod(1 - np.asarray(self.died) / np.asarray(self.at_risk))

    @property
    def errors(self) -> Array:
        """Greenwood's standard errors of these, float64 [J]; nan when nobody is left."""
        return self.survival * np.sqrt(self._greenwood)

    def intervals(self, confidence: float = 0.95) -> Array:
        """Lower and upper ends, float64 [J, 2]."""
        with np.errstate(all="ignore"):
            logarithm = np.log(self.survival)
            width = stats.norm.ppf((1 + confidence) / 2) * np.sqrt(self._greenwood) / logarithm
            ends = np.exp(-np.exp(np.log(-logarithm)[:, None] + np.stack([-width, width], axis=1)))
        return np.where(np.isnan(ends), self.survival[:, None], ends)

    def median(self) -> tuple[float, float, float]:
        """The time after which half of the rows have an event, and its interval of 95 %; inf for later ones."""
        lower, upper = self.intervals().T
        first, second, third = (self._first_below(curve) for curve in (self.survival, lower, upper))
        return first, second, third

    def value_at(self, time: float) -> tuple[float, float, float]:
        """The curve at a time, and its interval."""
        number = int(np.searchsorted(self.times, time, side="right"))
        if not number:
            return 1.0, 1.0, 1.0
        low, high = self.intervals()[number - 1].tolist()
        return float(self.survival[number - 1]), low, high

    def at_risk_at(self, time: float) -> float:
        """Rows at risk at the next of the times; nan after the last."""
        before = int(np.searchsorted(self.times, time, side="left"))
        return self.at_risk[before] if before < len(self.times) else math.nan

    @property
    def _greenwood(self) -> Array:
        at_risk, died = np.asarray(self.at_risk), np.asarray(self.died)
        with np.errstate(all="ignore"):
            return np.cumsum(died / (at_risk * (at_risk - died)))

    def _first_below(self, curve: Array) -> float:
        below = np.flatnonzero(curve <= _HALF)
        return self.times[below[0]] if below.size else math.inf


@dataclass(frozen=True, kw_only=True)
class Survival:
    """Survival curves over a federation.

    time, event, by: names of the columns; by is "" for one curve.
    high, cells: of the grid.
    missing, negative, between: rows without a value, times below 0, and times between the points; 1 to 4 as 5.
    clients, nodes: how many contributed, and how many there were.
    chi_squared: of the log-rank test; None if there is none.
    compared: how many groups have rows, all of which the test compares.
    queries: sums that it took.
    """

    time: str
    event: str
    by: str
    high: float
    cells: int
    curves: tuple[Curve, ...]
    missing: int
    negative: int
    between: int
    clients: int
    nodes: int
    chi_squared: float | None
    compared: int
    queries: int

    @property
    def p_value(self) -> float:
        """Of the log-rank test that all curves are one; nan if there is none."""
        return math.nan if self.chi_squared is None else float(stats.chi2.sf(self.chi_squared, self.degrees))

    @property
    def degrees(self) -> int:
        """Of freedom of this test."""
        return self.compared - 1


def fit_survival(query: SurvivalQuery, ask: AskCounts, *, nodes: int) -> Survival:
    """The curves; raises ConfigurationError for events that are none, RoundFailed if the clients change in between."""
    times = query.times
    counts, queries = ask_counts(times, CountStep.all_of(times), ask)
    if counts.wrong:
        raise wrong_event(times.event_name)
    if counts.rows < LEAST_IN_CELL:
        raise ConfigurationError(
            f"fewer than {LEAST_IN_CELL} rows have a time and an event, and fedcore shows nothing of so few",
            check="too-few-rows",
        )
    curves = tuple(
        Curve.of(label, times, events, censored)
        for (label, _), events, censored in zip(times.groups, counts.events, counts.censored, strict=True)
    )
    there = counts.events.sum(axis=1) + counts.censored.sum(axis=1) > 0
    small = any(curve.few for curve, has_rows in zip(curves, there, strict=True) if has_rows)
    test = None if small else log_rank(counts.events[there], counts.censored[there])
    return Survival(
        time=times.time_name, event=times.event_name, by=query.by, high=times.high, cells=times.cells, curves=curves,
        missing=_coarse(counts.missing), negative=_coarse(counts.negative), between=_coarse(counts.between),
        clients=counts.clients, nodes=nodes,
        chi_squared=test, compared=int(there.sum()), queries=queries,
    )  # fmt: skip


def ask_counts(times: SurvivalTimes, steps: Sequence[CountStep], ask: AskCounts) -> tuple[Counts, int]:
    """The counts, and how many queries they took; raises RoundFailed if two of these are of different rows."""
    answers = [ask(step) for step in steps]
    if not all(Counts.same_rows(answers[0], other) for other in answers):
        raise RoundFailed(
            "the counts of times are from other clients in one query than in another, or of other rows, so there is no "
            "result: ask again when all clients are there",
            check="other-clients",
        )
    return Counts.of(times, answers), len(answers)


def log_rank(events: Array, censored: Array) -> float | None:
    """The statistic of the log-rank test (Mantel, 1966), from the counts of each group at each point [G, cells + 2].

    None if there is no event to compare, or one group.
    """
    at_risk = np.cumsum((events + censored)[:, ::-1], axis=1)[:, ::-1]
    all_events, all_rows = events.sum(axis=0), at_risk.sum(axis=0)
    used = all_events > 0
    died, share = all_events[used], at_risk[:, used] / all_rows[used]
    weight = died * (all_rows[used] - died) / np.maximum(all_rows[used] - 1, 1)
    difference = events.sum(axis=1) - share @ died
    variance = np.diag(share @ weight) - (share * weight) @ share.T
    if not np.trace(variance) > 0:
        return None
    return float(difference[:-1] @ np.linalg.pinv(variance[:-1, :-1]) @ difference[:-1])


def wrong_event(name: str) -> ConfigurationError:
    """The error for an event column that holds other numbers."""
    return ConfigurationError(
        f"{name} has other values than 0 and 1; an event is 1, and 0 stands for a row without one until its time",
        check="wrong-event",
    )


def _coarse(number: int) -> int:
    return LEAST_IN_CELL if 0 < number < LEAST_IN_CELL else number
