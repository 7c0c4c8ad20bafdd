"""Recognises an app's own weighted mean of metrics, which gives of one mean what it gives of all replies.

Flower's templates and examples have one each: sums of `num_examples * metric` over a sum of examples. It is recognised
by what it does, on made-up replies: of a few replies it has to give what it gives of their mean. To call it changes
nothing, since only a function that computes is called at all: its bytecode reads no variables of the app and writes
none, and calls nothing but arithmetic.
"""

from __future__ import annotations

import builtins
import dis
import logging
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

Api = Literal["message", "legacy"]
Metrics: TypeAlias = Mapping[str, float | Sequence[float]]

_BUILTINS: Final = frozenset((
    "sum", "len", "zip", "range", "enumerate", "sorted", "reversed", "min", "max", "abs", "round", "pow", "float",
    "int", "bool", "str", "list", "tuple", "dict", "set", "isinstance", "hasattr", "any", "all", "map", "filter",
    "iter", "next", "AssertionError", "KeyError", "ValueError", "ZeroDivisionError",
))  # fmt: skip
_NAMES: Final = frozenset((
    "items", "keys", "values", "get", "append", "extend", "setdefault", "update", "copy", "metric_records",
    "array_records", "config_records", "mean", "average", "sum", "dot", "array", "asarray", "stack", "float32",
    "float64", "fmean", "fsum", "nan", "isnan", "isfinite", "item", "tolist", "sqrt", "content", "has_error",
))  # fmt: skip
_OBJECTS: Final = (math, statistics, np, MetricRecord, RecordDict, ArrayRecord, ConfigRecord)
_WRITES: Final = frozenset(
    ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME", "STORE_ATTR", "DELETE_ATTR", "IMPORT_NAME", "LOAD_SUPER_ATTR")
)
_MOST_NAMES: Final = 30
REPLIES: Final = (2, 3, 5)
"""How many made-up replies a function is tried on."""
_RECORD: Final = "metrics"


def only_computes(function: object) -> bool:
    """Whether a call of a function has no effect but its result, as far as its bytecode shows."""
    return isinstance(function, FunctionType) and _computes(function, ())


def _computes(function: FunctionType, above: tuple[CodeType, ...]) -> bool:
    if function.__code__ in above:
        return True
    constants = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    try:
        closure = {
            name: cell.cell_contents
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        }
    except ValueError:  # a cell that is still empty
        return False
    above = (*above, function.__code__)
    return (
        all(map(_constant, constants))
        and all(_allowed(value, above) for value in closure.values())
        and _code_computes(function.__code__, function.__globals__, above)
    )


def _code_computes(code: CodeType, variables: Mapping[str, Any], above: tuple[CodeType, ...]) -> bool:
    for step in dis.get_instructions(code):
        if step.opname in _WRITES or (step.opname == "STORE_DEREF" and step.argval in code.co_freevars):
            return False
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and step.argval not in _NAMES:
            return False
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            if step.argval in variables:
                if not _allowed(variables[step.argval], above):
                    return False
            elif step.argval not in _BUILTINS or not hasattr(builtins, step.argval):
                return False
    nested = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return all(_code_computes(one, variables, above) for one in nested)


def _allowed(value: object, above: tuple[CodeType, ...]) -> bool:
    """Of a variable: a constant, a module or class of arithmetic, a log, or a function that only computes."""
    if isinstance(value, FunctionType):
        return _computes(value, above)
    if isinstance(value, MethodType) and isinstance(value.__self__, logging.Logger):
        return True
    return any(value is one for one in _OBJECTS) or _constant(value)


def _constant(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_constant, value))
    return value is None or isinstance(value, bool | int | float | str)


# --- made-up replies --------------------------------------------------------------------------------------------------


def is_weighted_mean(function: object, api: Api, weight_key: str, metrics: Metrics | None = None) -> bool:
    """Whether a function of replies gives of their mean what it gives of them, for replies with these metrics.

    api
        message: `f(contents, weight_key) -> MetricRecord`; legacy: `f([(examples, metrics)]) -> metrics`.
    metrics
        A reply's: what a real one has. Without them they are those that the function asks for by name, and two more.
    """
    if not only_computes(function):
        return False
    assert callable(function)  # noqa: S101 - a function
    draw = np.random.default_rng(0)
    try:
        shapes = dict(metrics) if metrics is not None else _asked_for(function, api, weight_key)
        return all(_same(function, api, weight_key, shapes, count, draw) for count in REPLIES for _ in range(3))
    except Exception:  # it may fail on made-up replies in any way
        return False


def _asked_for(function: Callable[..., Any], api: Api, weight_key: str) -> Metrics:
    """The metrics that it asks for by name: each that it misses is added."""
    names: dict[str, float] = {"loss": 0.0, "accuracy": 0.0}
    for _ in range(_MOST_NAMES):
        try:
            _called(function, api, weight_key, [(1, names)])
        except KeyError as error:
            missing = error.args[0] if error.args else None
            if not isinstance(missing, str) or missing in names:
                raise
            names[missing] = 0.0
        else:
            break
    return names


def _same(
    function: Callable[..., Any], api: Api, weight_key: str, shapes: Metrics, count: int, draw: np.random.Generator
) -> bool:
    replies = [
        (int(draw.integers(1, 1000)), {name: _drawn(value, draw) for name, value in shapes.items()})
        for _ in range(count)
    ]
    total = sum(examples for examples, _ in replies)
    mean = {
        name: plain(sum(examples / total * np.asarray(metrics[name]) for examples, metrics in replies))
        for name in shapes
    }
    of_all = _called(function, api, weight_key, replies)
    of_one = _called(function, api, weight_key, [(total, mean)])
    return of_all.keys() == of_one.keys() and all(
        np.shape(of_all[name]) == np.shape(of_one[name])
        and np.allclose(of_all[name], of_one[name], rtol=1e-5, atol=1e-9)
        for name in of_all
    )


def _drawn(value: float | Sequence[float], draw: np.random.Generator) -> Any:
    """Another value of the same shape; some are beyond 1, and some below 0."""
    if isinstance(value, list):
        return [_drawn(0.0, draw) for _ in value]
    return float(draw.random() if draw.random() < 0.7 else draw.normal(0.0, 100.0))


def plain(value: Any) -> Any:
    """A number or an array as a record has it."""
    return value.tolist() if isinstance(value, np.ndarray) else float(value)


def _called(
    function: Callable[..., Any], api: Api, weight_key: str, replies: Sequence[tuple[int, Mapping[str, Any]]]
) -> Mapping[str, Any]:
    if api == "legacy":
        result = function([(examples, dict(metrics)) for examples, metrics in replies])
    else:
        contents = [
            RecordDict({_RECORD: MetricRecord({weight_key: examples, **metrics})}) for examples, metrics in replies
        ]
        result = function(contents, weight_key)
    return dict(result)
