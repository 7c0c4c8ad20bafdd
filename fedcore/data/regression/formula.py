"""Formulas of a regression, `readmitted ~ age + C(sex) + age:bmi`: what R, patsy and formulaic agree on, and no more.

A formula is never evaluated as a program, and nothing in it depends on the rows of a site: transformations take one
value at a time, and the levels of a category are named by the table's schema or by the formula itself. patsy and
formulaic evaluate Python, and center(), scale() and poly() read the rows that they are given, which differ by site.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NoReturn

from fedcore.errors import ConfigurationError

FUNCTIONS: Final = ("log", "log1p", "log2", "log10", "sqrt", "exp")
STATEFUL: Final = frozenset(
    {"center", "scale", "standardize", "poly", "bs", "cr", "cc", "te", "cs", "Q", "hashed", "lag"}
)
"""Functions of patsy and formulaic whose values depend on all rows that are there, or that need their names."""
MOST_POWER: Final = 6
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)|(?P<name>[^\W\d][\w.]*)|`(?P<quoted>[^`]+)`"
    r"|(?P<text>'[^']*'|\"[^\"]*\")|(?P<sign>\*\*|[-+*:~()\[\],]))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A factor of a term, as it is written.

    function: one of `FUNCTIONS`, "C" for a category, "I" for a power, "strata", "" for the column itself.
    power: of a column, from 2 on; 1 for none.
    levels: of a category, the first is the reference; empty for those of the schema.
    """

    column: str
    function: str = ""
    power: int = 1
    levels: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """What the output calls it."""
        if self.function == "I":
            return f"I({self.column} ** {self.power})"
        return f"{self.function}({self.column})" if self.function else self.column


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """A target and terms, each a product of parts; the terms in the order of the output, those of fewer parts first.

    time: of `Surv(time, event)`, whose event is the target; "" for a target by itself.
    strata: the column whose values have hazards of their own; None for none.
    """

    target: str
    terms: tuple[tuple[Part, ...], ...]
    intercept: bool = True
    time: str = ""
    strata: Part | None = None

    @classmethod
    def parse(cls, text: str) -> Formula:
        """Raises ConfigurationError that says what is wrong, and where."""
        return _Parser(text).formula()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*self._scan(text), ("end", "")]
        self._at = 0

    def _scan(self, text: str) -> Iterator[tuple[str, str]]:
        end, stop = 0, len(text.rstrip())
        while end < stop:
            token = _TOKEN.match(text, end)
            if token is None:
                self._fail(f"cannot be read from {text[end:].strip()[:20]!r} on")
            kind = str(token.lastgroup)
            yield ("name" if kind == "quoted" else kind, token[kind])
            end = token.end()

    def formula(self) -> Formula:
        time, target = self._target()
        self._expect("~")
        terms: dict[frozenset[str], tuple[Part, ...]] = {}
        intercept, sign = True, "+"
        if self._peek() in ("+", "-"):
            sign = self._next()[1]
        while True:
            if self._tokens[self._at][0] == "number":
                intercept = self._constant(sign)
            elif sign == "-":
                self._fail("leaves out a term; only - 1 is known, for a model without an intercept")
            else:
                for term in self._product():
                    terms.setdefault(frozenset(part.label for part in term), term)
            if self._tokens[self._at][0] == "end":
                break
            sign = self._next()[1]
            if sign not in ("+", "-"):
                self._fail(f"has {sign!r} where + should be")
        strata = self._strata(terms, of_times=bool(time))
        for name in (target, time):
            if name in {part.column for term in terms.values() for part in term}:
                self._fail(f"has its target {name!r} among the terms")
        if not terms and not intercept:
            self._fail("has no terms")
        ordered = sorted(terms.values(), key=len)
        return Formula(target=target, terms=tuple(ordered), intercept=intercept, time=time, strata=strata)

    def _target(self) -> tuple[str, str]:
        """The time, "" if there is none, and the target."""
        name = self._name("begins with the target")
        if name != "Surv" or self._peek() != "(":
            return "", name
        self._next()
        time = self._name("has a time in Surv(time, event)")
        self._expect(",")
        event = self._name("has an event in Surv(time, event)")
        self._expect(")")
        if time == event:
            self._fail(f"has {time!r} both as the time and as the event")
        return time, event

    def _strata(self, terms: dict[frozenset[str], tuple[Part, ...]], *, of_times: bool) -> Part | None:
        """Take the strata out of the terms."""
        strata = {key: term for key, term in terms.items() if any(part.function == "strata" for part in term)}
        for key in strata:
            del terms[key]
        if not strata:
            return None
        term, *more = strata.values()
        if not of_times or more or len(term) > 1:
            self._fail(
                "has strata(), which stands once, as a term of its own, in a formula that begins with Surv(time, event)"
            )
        return term[0]

    def _constant(self, sign: str) -> bool:
        number = self._next()[1]
        if number not in ("0", "1"):
            self._fail(f"has the number {number} as a term; write I(x ** 2) for a power")
        return (number == "1") == (sign == "+")

    def _product(self) -> list[tuple[Part, ...]]:
        """What `a*b` or `a:b` stands for."""
        groups = [self._interaction()]
        while self._peek() == "*":
            self._next()
            groups.append(self._interaction())
        chosen = [some for count in range(1, len(groups) + 1) for some in itertools.combinations(groups, count)]
        return [_distinct([part for group in some for part in group]) for some in chosen]

    def _interaction(self) -> tuple[Part, ...]:
        parts = [self._part()]
        while self._peek() == ":":
            self._next()
            parts.append(self._part())
        return _distinct(parts)

    def _part(self) -> Part:
        name = self._name("has a column")
        if self._peek() != "(":
            return Part(column=name)
        self._next()
        if name == "C":
            part = Part(column=self._name("C(...) has a column"), function="C", levels=self._levels())
        elif name == "strata":
            part = Part(column=self._name("strata(...) has a column"), function="strata", levels=self._levels())
        elif name == "I":
            part = self._power()
        elif name in FUNCTIONS:
            part = Part(column=self._name(f"{name}(...) has a column"), function=name)
        elif name in STATEFUL:
            raise ConfigurationError(
                f"the formula has {name}(), which depends on the rows that a site has, so that it would mean something "
                f"else at each; give the column as it is (it is scaled by its bounds inside), or one of "
                f"{', '.join(FUNCTIONS)} and I(x ** 2)",
                check="depends-on-site",
            )
        else:
            self._fail(f"has {name}(), which is not known; there are C, I, strata and {', '.join(FUNCTIONS)}")
        self._expect(")")
        return part

    def _power(self) -> Part:
        column = self._name("I(...) has a column")
        self._expect("**")
        kind, number = self._next()
        if kind != "number" or not number.isdecimal() or not 2 <= int(number) <= MOST_POWER:
            self._fail(f"has a power that is no whole number from 2 to {MOST_POWER}")
        return Part(column=column, function="I", power=int(number))

    def _levels(self) -> tuple[str, ...]:
        if self._peek() != ",":
            return ()
        self._next()
        self._expect("[")
        levels: list[str] = []
        while True:
            minus = self._next()[1] if self._peek() == "-" else ""
            kind, word = self._next()
            if kind not in ("number", "text", "name"):
                self._fail("lists no levels in C(column, [0, 1, 2])")
            levels.append(minus + (word[1:-1] if kind == "text" else word))
            if self._peek() != ",":
                break
            self._next()
        self._expect("]")
        if len(set(levels)) < max(len(levels), 2):
            self._fail("lists a level twice, or fewer than two of them, in C(column, [...])")
        return tuple(levels)

    def _peek(self) -> str:
        kind, text = self._tokens[self._at]
        return text if kind == "sign" else ""

    def _next(self) -> tuple[str, str]:
        token = self._tokens[self._at]
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def _name(self, what: str) -> str:
        kind, text = self._next()
        if kind != "name":
            self._fail(f"{what}, not with {text!r}" if text else f"{what}, and it ends before")
        return text

    def _expect(self, sign: str) -> None:
        kind, text = self._next()
        if kind != "sign" or text != sign:
            self._fail(f"has {text!r} where {sign!r} should be" if text else f"ends where {sign!r} should be")

    def _fail(self, what: str) -> NoReturn:
        raise ConfigurationError(
            f"the formula {self._text!r} {what}; a formula is written as in readmitted ~ age + C(sex) + age:bmi, names "
            "of columns that hold other characters as in `blood pressure`",
            check="formula",
        )


def _distinct(parts: list[Part]) -> tuple[Part, ...]:
    return tuple({part.label: part for part in parts}.values())
