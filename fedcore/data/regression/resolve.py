"""A regression's question from a formula and what is known of the columns: a table's schema, or their bounds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedcore.data.regression.formula import Formula, Part
from fedcore.data.regression.question import (
    FAMILIES,
    SITE_EFFECTS,
    DesignColumn,
    Factor,
    Family,
    RegressionQuery,
    SiteEffects,
)
from fedcore.data.statistics import Bounds
from fedcore.data.survival.resolve import event_column, row_groups, survival_times
from fedcore.data.survival.times import SurvivalTimes
from fedcore.data.tables import TableSchema, nearest
from fedcore.errors import ConfigurationError

_FAMILY_OF: Final[Mapping[str, Family]] = {"binary": "logistic", "regression": "linear"}


@dataclass(frozen=True, slots=True)
class _Coded:
    """A part of a term as design columns: the rest of their names, how they are made, and between what they lie."""

    columns: tuple[tuple[str, Factor, tuple[float, float]], ...]
    category: str = ""


def regression_query(
    text: str,
    *,
    family: str = "",
    bounds: Bounds | None = None,
    schema: TableSchema | None = None,
    bins: int | None = None,
    sites: str = "",
) -> RegressionQuery:
    """The question that a formula stands for; raises ConfigurationError.

    Args:
        text: the formula.
        family: one of `FAMILIES`; "" for that of the schema's target.
        bounds: of the columns, which say how they are scaled.
        schema: of the app's table; None if the app has none.
        bins: cells of the grid of times of a Cox regression; None for those of `survival_query`.
        sites: one of `SITE_EFFECTS`.
    """
    formula = Formula.parse(text)
    query = _Resolver(formula, bounds, schema).query(_family(family, formula, schema), bins, _site_effects(sites))
    if bins is not None and (query.survival is None or sites):
        raise ConfigurationError(
            "--bins is the grid of times of a Cox regression without effects of sites; leave it out", check="no-effect"
        )
    return query


def _site_effects(text: str) -> SiteEffects:
    for one in SITE_EFFECTS:
        if text == one:
            return one
    raise ConfigurationError(f"--site-effects is {' or '.join(SITE_EFFECTS[1:])}, not {text!r}", check="site-effects")


def _family(family: str, formula: Formula, schema: TableSchema | None) -> Family:
    if (family == "cox" and not formula.time) or (formula.time and family not in ("", "cox")):
        raise ConfigurationError(
            "the formula of a Cox regression begins with Surv(time, event), and that of no other does", check="family"
        )
    if formula.time:
        return "cox"
    for one in FAMILIES:
        if family == one:
            return one
    if family:
        raise ConfigurationError(f"--family is one of {', '.join(FAMILIES)}, not {family!r}", check="family")
    if schema is not None and formula.target in (schema.target, "y") and schema.task in _FAMILY_OF:
        return _FAMILY_OF[schema.task]
    raise ConfigurationError(
        f"nobody says how {formula.target} is distributed; give --family {', '.join(FAMILIES[:-1])} or {FAMILIES[-1]}",
        check="family",
    )


class _Resolver:
    def __init__(self, formula: Formula, bounds: Bounds | None, schema: TableSchema | None) -> None:
        self._formula = formula
        self._bounds = bounds
        self._columns = {} if schema is None else {one.name: one for one in schema.columns}
        self._schema = schema
        self._one_of: dict[str, tuple[str, ...]] = {}
        self._levels: dict[str, tuple[float, ...]] = {}

    def query(self, family: Family, bins: int | None, sites: SiteEffects) -> RegressionQuery:
        """Args: bins, sites: as in `regression_query`."""
        formula = self._formula
        survival = self._survival(bins, own=bool(sites)) if formula.time else None
        target, unit, (low, high) = self._target(family)
        reference = formula.intercept
        columns: list[DesignColumn] = []
        for term in formula.terms:
            self._check_product(term)
            coded = [self._coded(part, reference=reference or len(term) > 1) for part in term]
            if len(term) == 1 and coded[0].category:
                reference = True  # without an intercept the first category has a coefficient for each level
            columns += _products(coded)
        return RegressionQuery(
            family=family,
            target=target,
            target_name=formula.target,
            columns=tuple(columns),
            intercept=formula.intercept,
            unit=unit,
            target_low=low,
            target_high=high,
            one_of=tuple(self._one_of.values()),
            levels=tuple(self._levels.items()),
            survival=survival,
            sites=sites,
        )

    def _survival(self, bins: int | None, *, own: bool) -> SurvivalTimes:
        """Times, events and strata; own: whether sites have their own risk sets, which need no grid."""
        formula, schema = self._formula, self._schema
        groups = row_groups(formula.strata, schema) if formula.strata is not None else (("all", ""),)
        bounds = (0.0, 1.0) if own else self._bounds
        return survival_times(formula.time, formula.target, groups=groups, bins=bins, bounds=bounds, schema=schema)

    def _check_product(self, term: tuple[Part, ...]) -> None:
        """A category in a product has a reference, which means what it says if all lower terms are there."""
        if not any(part.function == "C" or self._is_category(part.column) for part in term):
            return
        terms = {frozenset(part.label for part in one) for one in self._formula.terms}
        for count in range(1, len(term)):
            for some in itertools.combinations(term, count):
                if frozenset(part.label for part in some) not in terms:
                    raise ConfigurationError(
                        f"the formula has {':'.join(part.label for part in term)} without "
                        f"{':'.join(part.label for part in some)}; write {'*'.join(part.label for part in term)}, "
                        "which stands for all of them",
                        check="lower-terms",
                    )

    def _is_category(self, name: str) -> bool:
        return name in self._columns and self._columns[name].kind == "category"

    def _target(self, family: Family) -> tuple[str, float, tuple[float, float]]:
        name, schema = self._formula.target, self._schema
        if family == "cox":
            return event_column(name, schema), 1.0, (-1.0, 1.0)
        if schema is None or name not in (schema.target, "y"):
            bounds = self._number(name) if family == "linear" else (-1.0, 1.0)
            self._check_known(name)
            return name, 1.0, bounds
        if schema.task == "classes":
            raise ConfigurationError(
                f"{name} has {len(schema.classes)} classes, and a regression here is of a number or of two classes",
                check="target-classes",
            )
        unit = schema.target_unit if name == schema.target else 1.0
        low, high = schema.target_low, schema.target_high
        return "y", unit, (low, high) if schema.task == "regression" else (0.0, 1.0)

    def _coded(self, part: Part, *, reference: bool) -> _Coded:
        name = part.column
        column = self._columns.get(name)
        if column is not None and self._is_category(name):
            if part.function not in ("", "C"):
                raise ConfigurationError(f"{name} is a category, so that {part.label} has no meaning")
            levels = part.levels or column.categories
            if unknown := [level for level in levels if level not in column.categories]:
                raise ConfigurationError(f"{name} has no level {nearest(unknown[0], column.categories)}", check="level")
            self._one_of[name] = tuple(f"{name}={level}" for level in levels)
            factors = [(level, Factor(column=f"{name}={level}")) for level in levels]
            return _category(part.label, factors, reference=reference)
        if part.function == "C":
            numbers = _level_numbers(part, boolean=column is not None and column.kind == "boolean")
            self._check_known(name)
            if self._levels.setdefault(name, tuple(numbers.values())) != tuple(numbers.values()):
                raise ConfigurationError(f"the formula names other levels of {name} in another place", check="levels")
            factors = [(level, Factor(column=name, level=number)) for level, number in numbers.items()]
            return _category(part.label, factors, reference=reference)
        factor = Factor(column=name, function="" if part.function == "I" else part.function, power=part.power)
        return _Coded(((part.label, factor, _image(part, self._number(name), factor)),))

    def _number(self, name: str) -> tuple[float, float]:
        """The bounds of a column; raises ConfigurationError if there are none."""
        self._check_known(name)
        bounds = self._bounds
        pair = bounds.get(name) if isinstance(bounds, Mapping) else bounds
        column = self._columns.get(name)
        if pair is None and column is not None and column.kind != "category":
            pair = column.low, column.high
        if pair is None:
            there = ", ".join(self._bounds) if isinstance(self._bounds, Mapping) and self._bounds else "none"
            raise ConfigurationError(
                f"there are no bounds of {name!r}; there are {there}. They say how the column is scaled, alike at all "
                f"sites: give them as --bounds '{name}=0:120', or in [tool.fedcore.statistics.bounds] of the app",
                check="no-bounds",
            )
        return pair

    def _check_known(self, name: str) -> None:
        """Raise ConfigurationError for a column that the schema does not have."""
        if self._schema is None or name in self._columns or name in (self._schema.target, "y"):
            return
        raise ConfigurationError(
            f"there is no column {nearest(name, [*self._columns, self._schema.target])}", check="no-such-column"
        )


def _category(label: str, factors: Sequence[tuple[str, Factor]], *, reference: bool) -> _Coded:
    mark, rest = ("T.", factors[1:]) if reference else ("", factors)
    return _Coded(tuple((f"{label}[{mark}{level}]", factor, (0.0, 1.0)) for level, factor in rest), label)


def _level_numbers(part: Part, *, boolean: bool) -> dict[str, float]:
    levels = part.levels or (("0", "1") if boolean else ())
    if not levels:
        raise ConfigurationError(
            f"nobody says which levels {part.column} has, and they have to be the same at all sites; write "
            f"C({part.column}, [0, 1, 2]), the reference first",
            check="no-levels",
        )
    try:
        return {level: float(level) for level in levels}
    except ValueError:
        raise ConfigurationError(
            f"the levels of {part.column} are numbers, since its values are, not {', '.join(levels)}", check="level"
        ) from None


def _products(coded: Sequence[_Coded]) -> list[DesignColumn]:
    """The columns of a term; those of the last part change first."""
    columns = []
    for chosen in itertools.product(*(one.columns for one in coded)):
        corners = [(1.0, 1.0)]
        for _, _, pair in chosen:
            products = [a * b for a in corners[0] for b in pair]
            corners = [(min(products), max(products))]
        columns.append(
            DesignColumn(
                name=":".join(name for name, _, _ in chosen),
                factors=tuple(factor for _, factor, _ in chosen),
                low=corners[0][0],
                high=corners[0][1],
                category=coded[0].category if len(coded) == 1 else "",
            )
        )
    return columns


def _image(part: Part, bounds: tuple[float, float], factor: Factor) -> tuple[float, float]:
    """Between what the transformed values lie; a function that is undefined at a bound is taken a little inside."""
    low, high = bounds
    if not low < high:
        raise ConfigurationError(f"the bounds of {part.column} are {low:g} and {high:g}; the first is the lower one")
    values = factor.of(np.linspace(low, high, 257))
    if not np.isfinite(values).sum() > 1:
        raise ConfigurationError(
            f"{part.label} has no values between the bounds of {part.column}, {low:g} and {high:g}"
        )
    return float(np.nanmin(values)), float(np.nanmax(values))
