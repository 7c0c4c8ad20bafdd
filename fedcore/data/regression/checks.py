"""What the first sums of a regression say against it: too few rows, small cells, levels that foretell the target.

Numbers of fewer than `LEAST_IN_CELL` rows are not shown, as in `fedcore stats`: coefficients and errors of a regression
on categories give the numbers of its cells away.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedcore.data.regression.question import Array, RegressionQuery
from fedcore.data.regression.step import LARGEST, RegressionStep, Sums
from fedcore.data.statistics import LEAST_IN_CELL
from fedcore.errors import ConfigurationError

_LEAST_SQUARES: Final = 2.0**-38 * 1e4
"""The least sum of squared residuals for each client: sums have 38 bits after the point, and errors five digits."""


def check_rows(query: RegressionQuery, sums: Sums) -> None:
    """Refuse rows that are too few, and targets that the family does not have; raises ConfigurationError."""
    if sums.wrong:
        wrong = "other values than 0 and 1" if query.family in ("logistic", "cox") else "values below 0"
        raise ConfigurationError(
            f"{query.target_name} has {wrong}, and a {query.family} regression cannot use such rows; correct the "
            "column, or choose another --family",
            check="wrong-target",
        )
    if sums.rows < max(LEAST_IN_CELL, query.size + 1):
        number = str(sums.rows) if sums.rows >= LEAST_IN_CELL else f"fewer than {LEAST_IN_CELL}"
        raise ConfigurationError(
            f"there are {number} complete rows for {query.size - query.hides_intercept} coefficients; leave out terms, "
            "or columns that are often missing",
            check="too-few-rows",
        )
    if query.family in ("logistic", "cox"):
        _check_cell(f"{query.target_name} = 1", sums.target, query, outcome=True)
    if query.family == "logistic":
        _check_cell(f"{query.target_name} = 0", sums.rows - sums.target, query, outcome=True)
    if query.family == "poisson" and sums.target <= 0:
        raise _one_outcome(f"another {query.target_name} than 0", query)


def check_categories(query: RegressionQuery, first: Sums, step: RegressionStep) -> None:
    """Refuse coefficients that rest on fewer rows than `fedcore stats` shows, and those of levels without an event."""
    events, indicators = _column_events(query, first, step), _indicators(query, first, step)
    rest: dict[str, tuple[float, float]] = {}
    for at, column in enumerate(query.columns, start=int(query.intercept)):
        count, happened = float(first.nonzero[at]), float(events[at])
        if not column.category and round(count) == first.rows:
            continue  # a number that is never 0; if it is the same in all rows, that has an error of its own
        if count or column.category:
            _check_cell(column.name, count, query)
        if not indicators[at] or not count:
            continue
        _check_outcomes(column.name, count, happened, query)
        if len(column.factors) == 1:
            category = column.category or column.name
            others = rest.get(category, (float(first.rows), first.target))
            rest[category] = others[0] - count, others[1] - happened
    for category, (count, happened) in rest.items() if query.intercept else ():
        name = f"the reference of {category}"
        _check_cell(name, count, query)
        _check_outcomes(name, count, happened, query)


def _indicators(query: RegressionQuery, first: Sums, step: RegressionStep) -> NDArray[np.bool_]:
    """Which columns hold 0 and 1 alone: as many rows as are not 0 are their sum, and that of their squares [p]."""
    center, scale = np.asarray(step.center), np.asarray(step.scale)
    moments = first.information * (4.0 if query.family == "logistic" else 1.0)
    scaled_squares = scale**2 * np.diag(moments)
    if query.intercept:
        totals = scale * moments[0] + center * first.rows
        squares = scaled_squares + 2 * center * totals - center**2 * first.rows
    else:
        totals = squares = scaled_squares
    near: NDArray[np.bool_] = (np.abs(totals - first.nonzero) < 1e-3) & (np.abs(squares - first.nonzero) < 1e-3)
    return near


def _column_events(query: RegressionQuery, first: Sums, step: RegressionStep) -> Array:
    """The sum of the target over each column's rows of 1; at coefficients of 0 the gradient and the moments tell it."""
    if query.family == "linear":
        return np.zeros(query.size)
    expected, weight = {"logistic": (0.5, 4.0), "poisson": (1.0, 1.0)}.get(query.family, (0.0, 1.0))
    if not query.intercept:
        return np.asarray(step.scale) * first.gradient + expected * first.nonzero
    totals = weight * first.information[0]
    return np.asarray(
        np.asarray(step.scale) * (first.gradient + expected * totals) + np.asarray(step.center) * first.target
    )


def _check_outcomes(name: str, count: float, happened: float, query: RegressionQuery) -> None:
    if query.family == "linear" or round(count) == 0:
        return
    if round(happened * 1024) == 0 or (query.family == "logistic" and round((count - happened) * 1024) == 0):
        raise separation([name])
    if query.family in ("logistic", "cox"):
        _check_cell(f"{name} with {query.target_name} = 1", happened, query)
    if query.family == "logistic" or (query.family == "cox" and round(count - happened)):
        _check_cell(f"{name} with {query.target_name} = 0", count - happened, query)


def _check_cell(name: str, count: float, query: RegressionQuery, *, outcome: bool = False) -> None:
    number = round(count)
    if number == 0:
        if outcome:
            raise _one_outcome(name, query)
        raise ConfigurationError(
            f"no row has {name}; leave the term or the level out of the regression of {query.target_name}",
            check="empty-level",
        )
    if number < LEAST_IN_CELL:
        raise ConfigurationError(
            f"fewer than {LEAST_IN_CELL} rows have {name}, and fedcore shows nothing that rests on so few; leave the "
            f"term out of the regression of {query.target_name}, or join its level with another",
            check="small-cell",
        )


def _one_outcome(name: str, query: RegressionQuery) -> ConfigurationError:
    return ConfigurationError(
        f"no row has {name}, so that there is nothing for terms to explain; choose another target",
        check="one-outcome",
    )


def check_range(query: RegressionQuery, sums: Sums) -> None:
    """Refuse moments that some values are too large for; raises ConfigurationError."""
    if not sums.cut_off:
        return
    large = np.diag(sums.information) >= LARGEST
    names = [name for name, one in zip(query.names, large, strict=True) if one]
    if not names and query.family != "linear":
        raise ConfigurationError(
            f"the values of {query.target_name} are so large that their sums do not fit into a query; there is no "
            "regression of such numbers here",
            check="target-too-large",
        )
    raise narrow_bounds(names or [query.target_name])


def check_residuals(query: RegressionQuery, sums: Sums) -> None:
    """Refuse a linear regression whose sum of squares does not fit into a query, or is lost in its last digits."""
    if sums.deviance >= LARGEST:
        raise narrow_bounds([query.target_name])
    if sums.deviance < sums.clients * _LEAST_SQUARES:
        raise no_residuals(query)


def no_residuals(query: RegressionQuery) -> ConfigurationError:
    """The error for a linear regression without residuals."""
    within = f"within bounds of {query.target_low:g} to {query.target_high:g}"
    site = " and the sites" if query.sites else ""
    return ConfigurationError(
        f"the terms{site} determine {query.target_name}, or what they leave of it is too little to compute errors from "
        f"{within}; leave terms out, or give narrower bounds",
        check="no-residuals",
    )


def narrow_bounds(names: list[str]) -> ConfigurationError:
    """The error for values far outside their bounds."""
    return ConfigurationError(
        f"the values of {', '.join(names)} lie so far outside the bounds that their sums do not fit into a query; give "
        f"bounds as they are (--bounds '{names[0]}=LOW:HIGH')",
        check="bounds-too-narrow",
    )


def constant_column(names: list[str]) -> ConfigurationError:
    """The error for columns that have no coefficient."""
    return ConfigurationError(
        f"{', '.join(names)} is the same in all rows, or differs by less than a millionth of its bounds, so that it "
        "has no coefficient; leave it out, or give narrower bounds",
        check="constant",
    )


def separation(names: list[str]) -> ConfigurationError:
    """The error for terms whose coefficients would grow for ever."""
    return ConfigurationError(
        f"there is no finite estimate: {', '.join(names)} tells the target of some rows apart from all others "
        "(complete or quasi-complete separation); leave it out, or join its levels with others",
        check="separation",
    )


def small_stratum(name: str, event: str) -> ConfigurationError:
    """The error for rows of which too few have an event. name: of the stratum; "" for all rows."""
    return ConfigurationError(
        f"fewer than {LEAST_IN_CELL} rows {f'with {name} ' if name else ''}are there, or have {event} = 1 within the "
        "grid of times, and fedcore shows nothing that rests on so few; join the strata, or give a later upper bound",
        check="small-cell",
    )
