"""An app whose clients know the federation's means and spreads before they train, without a line in its ServerApp."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

APP = Path(__file__).parents[2] / "apps" / "scaled"
sys.path.insert(0, str(APP))
from scaled_app.client_app import BOUNDS, app, raw  # noqa: E402

from fedcore.flower.apps.tensor_app import LocalJob  # noqa: E402

Simulate = Callable[..., Any]


def test_training_begins_with_one_question(simulate: Simulate) -> None:
    done = simulate(3, app=APP).of("exchange-done")
    assert [exchange["message_type"] for exchange in done] == ["query.statistics", "train", "evaluate"]


def test_both_modes_train_alike(simulate: Simulate) -> None:
    settings = {"field-bits": 32, "w-max": 64}
    secure, plain = (simulate(3, app=APP, settings={**settings, "aggregation": mode}) for mode in ("secure", "plain"))
    for name in plain.state:
        assert np.allclose(secure.state[name], plain.state[name], atol=1e-5)


def test_pooled_statistics_are_those_that_a_federation_is_told() -> None:
    """For who trains on all the data in one place, and has to scale them alike."""
    config = {"seed": 7}
    nodes = ({"partition-id": site, "num-partitions": 3} for site in range(3))
    jobs = [LocalJob(config=config, node=node, message={"server-round": 1}, client=1) for node in nodes]
    told = app.columns.pooled(config, app.data, jobs)
    everything = np.concatenate([raw(site)[0] for site in range(3)])
    assert told["statistics-columns"] == list(BOUNDS)
    assert told["statistics-mean"] == pytest.approx(np.nanmean(everything, axis=0), abs=1e-6)
    assert told["statistics-std"] == pytest.approx(np.nanstd(everything, axis=0), abs=1e-6)
