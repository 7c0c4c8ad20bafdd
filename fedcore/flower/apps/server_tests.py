"""Tests of the global model where the ServerApp runs: Flower's `evaluate_fn`.

The curves of papers are of one test set that nobody owns, tested after every round. A server that holds such a set
tests by itself, and no client is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
from flwr.app import ArrayRecord, MetricRecord, UserConfig

from fedcore.data.types import Split
from fedcore.errors import ConfigurationError
from fedcore.flower.apps.engine_app import LocalApp
from fedcore.flower.records import state_from_arrays
from fedcore.training.engines import EngineConfig, World
from fedcore.training.loop import evaluate
from fedcore.training.metrics import accuracy
from fedcore.training.models.columns import set_statistics
from fedcore.training.seeds import derive_seed

KEY: Final = "central-test"
"""Of the run config: the most examples that the server tests with after every round; 0 for no such test."""

TestSet: TypeAlias = Callable[[UserConfig], Split]
"""Reads the server's test set."""
EvaluateFn: TypeAlias = Callable[[int, ArrayRecord], MetricRecord | None]


def server_test(
    client: LocalApp, config: UserConfig, test_set: TestSet | None, statistics: Mapping[str, Any]
) -> EvaluateFn | None:
    """The `evaluate_fn` that tests the ClientApp's model after each round; None if `central-test` is 0 or missing.

    It finds `eval_loss`, `eval_acc` for the accuracy, and the app's other metrics by their names. Of a larger test set
    it takes as many examples as `central-test` says, drawn by the seed of the run and the same in every round.

    Raises ConfigurationError for a negative number, an app without a test set, and a model that has parts which stay on
    the clients.

    Args:
        statistics: what `columns.ask` gave.
    """
    limit = int(config.get(KEY, 0))
    if limit < 0:
        raise ConfigurationError(
            f"{KEY} is a number of examples, not {limit}; 0 for no test at the server", check="test-examples"
        )
    if limit == 0:
        return None
    if test_set is None:
        raise ConfigurationError(
            f"{KEY} = {limit}, but the app names no test set: averaging_server(client, test=...)", check="no-test-set"
        )
    warm = client.definition.warm(config, EngineConfig(), World(device=World.current().device))
    engine, work = warm.engine, warm.personalization
    if work.own:
        raise ConfigurationError(
            f"{KEY} = {limit}, but the server has no whole model to test: {min(work.own)!r} stays on the clients",
            check="partial-model",
        )
    set_statistics(engine.model, statistics)
    examples, layout = _drawn(test_set(config), limit, int(config.get("seed", 0))), work.layout()

    def test(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        work.load_shared(state_from_arrays(arrays, like=layout))
        result = evaluate(engine, examples, metrics=client.metrics)
        figures = {"eval_acc" if name == accuracy.name else name: value for name, value in result.values.items()}
        return MetricRecord({"eval_loss": result.loss, **figures})

    return test


def _drawn(split: Split, limit: int, seed: int) -> Split:
    if len(split) <= limit:
        return split
    rows = np.random.default_rng(derive_seed("server's test set", seed)).choice(len(split), limit, replace=False)
    return split.take(np.sort(rows))
