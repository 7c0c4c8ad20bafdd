"""Declarations of app code: it needs only the mean of the replies, or their sum.

In secure mode a single reply stands for all clients. Nobody can tell from a function whether it means the same then, so
its author says so:

    @mean_only
    def weighted_accuracy(contents, weight_key): ...

    class LoggedFedAvg(FedAvg):
        mean_only = True

A class speaks for what it defines or inherits, not for what a subclass overrides afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType, FunctionType, MethodType
from typing import Any, Literal, TypeVar

from fedcore.errors import AppError

Wants = Literal["mean", "sum", "groups"]
T = TypeVar("T", bound=Callable[..., Any] | type)
ATTRIBUTES: dict[Wants, str] = {"mean": "mean_only", "sum": "sum_only", "groups": "group_means"}

_DECLARED: dict[Wants, dict[int, CodeType]] = {"mean": {}, "sum": {}, "groups": {}}
"""By identity: two functions with equal text have equal code, and only one of them may be declared."""


def mean_only(target: T) -> T:
    """Declare that a function or class means the same of one reply that holds the clients' weighted mean.

    A function: `main`, another that calls `send_and_receive` or `push_messages`, or a `*_metrics_aggr_fn`. A class: a
    strategy, or another whose methods do so. The reply has one ArrayRecord and one MetricRecord with the weighted
    means, and the summed examples under the weight key. Raises AppError for what is neither a function nor a class.
    """
    return _declare(target, "mean")


def sum_only(target: T) -> T:
    """Declare that a function or class that asks queries means the same of one reply that holds the clients' sum.

    Each number of the MetricRecord is the sum over the clients. Raises AppError for what is neither a function nor a
    class.
    """
    return _declare(target, "sum")


def group_means(target: T) -> T:
    """Declare that a function or class means the same of the means of groups as of single updates.

    For the training of a run that is cut into groups (the setting `groups`). There is one reply for each group, with
    its weighted mean, and the summed examples under the weight key. Raises AppError for what is neither a function nor
    a class.
    """
    return _declare(target, "groups")


def declared_code(code: CodeType, wants: Wants) -> bool:
    """Whether the function with this code was declared itself."""
    return id(code) in _DECLARED[wants]


def declared_class(kind: type, owner: type, wants: Wants) -> bool:
    """Whether objects of class `kind` were declared as far as they use what class `owner` defines.

    The most derived class that says anything about it decides.
    """
    for declaring in kind.__mro__:
        declared = vars(declaring).get(ATTRIBUTES[wants])
        if declared is not None:
            return declared is True and issubclass(declaring, owner)
    return False


def owner_of(kind: type, name: str, code: CodeType | None = None) -> type | None:
    """The class in `kind`'s order that defines `name`, or the one that defines it with this very code."""
    for owner in kind.__mro__:
        if name in vars(owner) and (code is None or code_of(vars(owner)[name]) is code):
            return owner
    return None


def code_of(value: object) -> CodeType | None:
    """The code behind a function, a method, a static method, a property or a partial; None for anything else."""
    while not isinstance(value, FunctionType):
        if isinstance(value, MethodType | staticmethod | classmethod):
            value = value.__func__
        elif isinstance(value, functools.partial | functools.partialmethod):
            value = value.func
        elif isinstance(value, property):
            value = value.fget
        else:
            return None
    return value.__code__


def _declare(target: T, wants: Wants) -> T:
    if isinstance(target, type):
        setattr(target, ATTRIBUTES[wants], True)
        return target
    code = code_of(target)
    if code is None:
        raise AppError(
            f"{ATTRIBUTES[wants]} takes a function or a class, not a {type(target).__name__}; an object is declared by "
            f"its class: {ATTRIBUTES[wants]} = True"
        )
    _DECLARED[wants][id(code)] = code
    return target
