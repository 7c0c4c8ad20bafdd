"""Which code may get the means of groups, one reply for each, instead of single updates.

If a training is cut into groups, Flower's robust strategies do over the means of groups what they do over updates
(bucketing: Karimireddy et al. 2022). They are allowed by the identity of their code, and asked whether as many groups
as are sure to give a mean are enough for what they promise; with fewer, Flower's own code would quietly do less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any, Final, Self

from flwr.server import strategy as legacy_strategies
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import multikrum

from fedcore.errors import AppError
from fedcore.flower.grid.declarations import code_of, declared_code
from fedcore.run.settings import JobSettings

ROBUST: Final = ("FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum", "Bulyan")
_SELECTION_RULE: Final = "selection_rule"


@dataclass(frozen=True, slots=True)
class Groups:
    """Into how many groups a training is cut, and how many of them are sure to give a mean."""

    count: int
    least: int

    @classmethod
    def of(cls, settings: JobSettings) -> Self | None:
        """Those of a run; None if its trainings are not cut."""
        return cls(settings.groups, settings.least_groups) if settings.groups > 1 else None


def _known() -> dict[int, CodeType]:
    """What Flower's robust strategies do with replies, as it was before the app's code ran."""
    functions: list[Any] = [multikrum.select_multikrum]
    for module, name in ((strategies, "aggregate_train"), (legacy_strategies, "aggregate_fit")):
        kinds = [getattr(module, kind) for kind in ROBUST if hasattr(module, kind)]
        functions += [vars(kind)[name] for kind in kinds if name in vars(kind)]
    return {id(function.__code__): function.__code__ for function in functions}


_KNOWN = _known()


def is_robust(code: CodeType | None) -> bool:
    """Whether this is one of Flower's own functions that may have the means of groups."""
    return code is not None and id(code) in _KNOWN


def check_robust(strategy: object, groups: Groups) -> None:
    """Refuse a strategy that could not do what it is for over as few means as there may be; raises AppError."""
    names = {kind.__name__ for kind in type(strategy).__mro__} & set(ROBUST)
    for name in names:
        least, why = _NEEDED[name](strategy)
        if groups.least < least:
            raise AppError(
                f"{type(strategy).__name__} needs the means of {least} groups ({why}), and {groups.least} of "
                f"{groups.count} are sure to give one: set min-groups = {least}"
                + ("" if groups.count >= least else f" and groups = {least} or more"),
                check="group-count",
            )
    rule = getattr(strategy, _SELECTION_RULE, None)
    if "Bulyan" in names and rule is not None:
        code = code_of(rule)
        if not is_robust(code) and not (code is not None and declared_code(code, "groups")):
            raise AppError(
                "Bulyan's selection_rule is the app's own: declare that it may have the means of groups in place of "
                "single updates (@fedcore.group_means), or leave it out",
                check="undeclared",
            )


def _median(strategy: object) -> tuple[int, str]:
    del strategy
    return 3, "the median of two is their mean"


def _trimmed(strategy: object) -> tuple[int, str]:
    beta = float(getattr(strategy, "beta", 0.0))
    if beta <= 0:
        raise AppError(
            "FedTrimmedAvg with beta = 0 cuts nothing off: that is the mean. Set beta, below 0.5",
            check="nothing-trimmed",
        )
    least = next(count for count in range(1, int(1 / beta) + 2) if int(beta * count))
    return least, f"of fewer, beta = {beta:g} cuts nothing off"


def _krum(strategy: object) -> tuple[int, str]:
    bad = _malicious(strategy)
    return 2 * bad + 3, f"2 f + 3 for f = {bad} bad ones, Blanchard et al. 2017"


def _bulyan(strategy: object) -> tuple[int, str]:
    bad = _malicious(strategy)
    return 4 * bad + 3, f"4 f + 3 for f = {bad} bad ones, El Mhamdi et al. 2018"


def _malicious(strategy: object) -> int:
    """How many bad ones it reckons with, by its name in either of Flower's APIs."""
    names = ("num_malicious_nodes", "num_malicious_clients")
    return next(int(getattr(strategy, name)) for name in names if hasattr(strategy, name))


_NEEDED: Final[dict[str, Callable[[object], tuple[int, str]]]] = {
    "FedMedian": _median,
    "FedTrimmedAvg": _trimmed,
    "Krum": _krum,
    "MultiKrum": _krum,
    "Bulyan": _bulyan,
}
