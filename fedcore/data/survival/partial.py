"""The partial likelihood of a Cox regression from sums over rows, with Efron's correction for ties.

Cox, JRSS B 34 (1972); Efron, JASA 72 (1977). Rows are summed by the number of times at which they are at risk, and
those with an event by its time as well: w, w x, and w x x' with w = exp(x beta), K = 1 + p + p (p + 1) / 2 numbers
for p columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedcore.data.survival.times import Array, Indices, SurvivalTimes

_ROWS_AT_ONCE = 1 << 16


def block_length(size: int) -> int:
    """K, for so many columns."""
    return 1 + size + size * (size + 1) // 2


def block_sums(slots: Indices, weight: Array, x: Array, count: int) -> Array:
    """Sums of w, w x and w x x' over the rows of each slot, float64 [count, K]; rows of negative slots are left out.

    Args:
        slots: of each row [n].
        weight: w [n].
        x: columns [n, p].
        count: of the slots.
    """
    sums = np.zeros((count, block_length(x.shape[1])))
    first, second = np.triu_indices(x.shape[1])
    chosen = np.flatnonzero((slots >= 0) & (slots < count))
    for start in range(0, len(chosen), _ROWS_AT_ONCE):
        some = chosen[start : start + _ROWS_AT_ONCE]
        columns, weights = x[some], weight[some]
        numbers = [weights, *(weights * columns.T), *(weights * columns[:, first].T * columns[:, second].T)]
        for at, values in enumerate(numbers):
            sums[:, at] += np.bincount(slots[some], values, count)
    return sums


def efron(rows: Array, events: Array, died: Array) -> tuple[float, Array, Array]:
    """What the risk sets of one stratum add: to the log-likelihood, its gradient [p], and the information [p, p].

    The sums over the rows with an event, of x beta and of x, come to it.

    Args:
        rows: block sums over the rows that are at risk at the first j times alone, for each j from 1 on [J, K].
        events: those over the rows that have an event at each time [J, K].
        died: how many these are [J].
    """
    size = round((np.sqrt(8 * rows.shape[1] + 1) - 3) / 2)
    at_risk = np.cumsum(rows[::-1], axis=0)[::-1]
    inverse, shares, squares, mixed, shared = (np.zeros(len(died)) for _ in range(5))
    likelihood = 0.0
    for number in range(int(died.max(initial=0))):
        share = np.where(number < died, number / np.maximum(died, 1), 0.0)
        used = number < died
        total = np.where(used, at_risk[:, 0] - share * events[:, 0], 1.0)
        one = np.where(used, 1 / total, 0.0)
        likelihood -= float(np.log(total).sum())
        inverse, shares = inverse + one, shares + share * one
        squares, mixed, shared = squares + one**2, mixed + share * one**2, shared + share**2 * one**2
    means, of_events = at_risk[:, 1 : size + 1], events[:, 1 : size + 1]
    gradient = -(inverse @ means - shares @ of_events)
    information = np.zeros((size, size))
    information[np.triu_indices(size)] = inverse @ at_risk[:, size + 1 :] - shares @ events[:, size + 1 :]
    information += np.triu(information, 1).T
    cross = (means * mixed[:, None]).T @ of_events
    information -= (means * squares[:, None]).T @ means - cross - cross.T + (of_events * shared[:, None]).T @ of_events
    return likelihood, gradient, information


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRows:
    """A site's rows of a Cox regression whose risk sets are each site's own, [n] each. died: 1 for an event."""

    time: Array
    died: Array
    group: Indices

    @classmethod
    def of(cls, times: SurvivalTimes, columns: Mapping[str, ArrayLike], chosen: Indices) -> SiteRows:
        """Some rows of the site; raises AppError."""
        rows = times.rows(columns)
        return cls(time=rows.time[chosen], died=rows.event[chosen], group=rows.group[chosen])

    def partial_likelihood(self, scaled: Array, eta: Array) -> tuple[float, Array, Array]:
        """Its logarithm, gradient [p] and information [p, p], with zeros for the first column, the intercept.

        Args:
            scaled: the design [n, p].
            eta: the predictions [n].
        """
        size = scaled.shape[1]
        gradient, information = np.zeros(size), np.zeros((size, size))
        eta = eta - eta.max(initial=-np.inf)
        likelihood = float(eta @ self.died)
        gradient[1:] = scaled[:, 1:].T @ self.died
        for group in np.unique(self.group):
            inside = self.group == group
            time, died, x = self.time[inside], self.died[inside] == 1, scaled[inside, 1:]
            events = np.unique(time[died])
            weight, count = np.exp(eta[inside]), len(events)
            until = np.searchsorted(events, time, side="right") - 1
            rows = block_sums(until, weight, x, count)
            of_events = block_sums(np.where(died, until, -1), weight, x, count)
            more = efron(rows, of_events, np.bincount(until[died], minlength=count).astype(np.float64))
            likelihood, gradient[1:] = likelihood + more[0], gradient[1:] + more[1]
            information[1:, 1:] += more[2]
        return likelihood, gradient, information
