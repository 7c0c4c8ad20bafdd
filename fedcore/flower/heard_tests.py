"""What the `evaluate_fn` of an app finds, round by round, told to whoever leads the run, who may end it there.

Flower's own loop tells of its results when it ends, and knows no other end than its number of rounds. So for the
duration of a run `Strategy.start` is replaced, as `fedcore.flower.initial` does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Strategy

from fedcore.errors import EnoughTested

EvaluateFn: TypeAlias = Callable[[int, ArrayRecord], MetricRecord | None]
OnTest: TypeAlias = Callable[[int, Mapping[str, Any]], bool]
"""Takes a round and what the test after it found; returns whether that is enough, so that the run ends there."""


@contextmanager
def telling_tests(on_test: OnTest | None) -> Iterator[None]:
    """Tell what the `evaluate_fn` of any app finds; it raises EnoughTested where that is enough."""
    if on_test is None:
        yield
        return
    original = Strategy.start
    signature = inspect.signature(original)

    def start(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        if (evaluate_fn := given.arguments.get("evaluate_fn")) is not None:
            given.arguments["evaluate_fn"] = _telling(evaluate_fn, on_test)
        return original(*given.args, **given.kwargs)

    Strategy.start = start  # type: ignore[method-assign]
    try:
        yield
    finally:
        Strategy.start = original  # type: ignore[method-assign]


def _telling(evaluate_fn: EvaluateFn, on_test: OnTest) -> EvaluateFn:
    def test(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        found = evaluate_fn(server_round, arrays)
        if found is not None and on_test(server_round, dict(found)):
            raise EnoughTested(f"the test after round {server_round} was enough")
        return found

    return test
