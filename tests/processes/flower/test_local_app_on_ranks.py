"""What stays and what is shared, when a client is two ranks: the same as with one, whatever the engine."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from fedcore.data import Split
from fedcore.flower.apps.engine_app import LocalJob, local_app
from fedcore.flower.apps.personalization import Personal
from fedcore.run.engine_config import EngineConfig
from fedcore.state import MemorySink, ModelState
from fedcore.training import OptimizerConfig, evaluate, seeded, train
from tests.support.ranks import RankFailed, Ranks

# The first test waits for the fork server and its imports.
ENGINES = ("ddp", "fsdp", "pp")
CONFIG = {"lr": 0.1}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 6)).astype(np.float32)
DATA = Split(x=X, y=(X[:, 0] > 0).astype(np.int64))
WAYS = {
    "head": Personal(patterns=("2.*",)),
    "whole": Personal(keep_model=True),
    "ditto": Personal(ditto=0.5),
}


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    with Ranks(2) as ranks:
        yield ranks


class MemoryStore:
    """Keeps the model of one client in this process."""

    def __init__(self):
        self.state = None

    def load(self, layout):
        return self.state

    def save(self, layout, write, about):
        sink = MemorySink(layout)
        write(sink)
        self.state = sink.state()


def network(config):
    with seeded(3):
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def fit(engine, job):
    summary = train(engine, DATA, batch_size=7, epochs=1, seed=job.server_round, rule=job.rule)
    return {"num-examples": summary.examples, "loss": summary.loss}


def check(engine, job):
    result = evaluate(engine, DATA)
    return {"num-examples": result.examples, "loss": result.loss}


def two_rounds(engine, way, adapter=False):
    """Both rounds' shared states, what is kept, and the metrics of an evaluation; on rank 0 of a group, or alone."""
    torch.set_num_threads(1)
    app = local_app(
        model=network,
        optimizer=lambda config: OptimizerConfig(lr=config["lr"], momentum=0.9),
        train=fit,
        evaluate=check,
        personal=lambda config: WAYS[way],
        adapter=adapter,
    )
    leads = not dist.is_initialized() or dist.get_rank() == 0
    store = MemoryStore()
    model = first_model(way) if leads else None
    shared = []
    for server_round in (1, 2):
        job = LocalJob(config=CONFIG, node={}, message={"server-round": server_round}, client=1)
        result = app.run(job, model, trains=True, store=store, engine_config=EngineConfig(engine=engine))
        sink = MemorySink(result.layout) if leads else None
        result.write(sink)
        if sink is not None:
            model = sink.state()
            shared.append(dict(model.items()))
    metrics = app.run(job, model, trains=False, store=store, engine_config=EngineConfig(engine=engine)).metrics
    return shared, dict(store.state.items()) if store.state is not None else None, dict(metrics)


def first_model(way):
    names = [name for name in network(CONFIG).state_dict() if way != "head" or not name.startswith("2.")]
    state = network(CONFIG).state_dict()
    return ModelState.from_arrays({name: state[name].numpy().copy() for name in names})


def assert_close(found, expected):
    assert list(found) == list(expected)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("engine", ENGINES)
def test_two_ranks_keep_and_share_what_one_does(two, engine, way):
    shared, kept, metrics = two_rounds("single", way)
    (found_shared, found_kept, found_metrics), (_, nothing, _) = two.run(two_rounds, engine, way)
    assert nothing is None  # rank 0 alone keeps
    for found, expected in zip(found_shared, shared, strict=True):
        assert_close(found, expected)
    assert_close(found_kept, kept)
    assert set(found_metrics) == set(metrics)
    for name, value in metrics.items():
        assert found_metrics[name] == pytest.approx(value, rel=1e-5)


def test_an_adapter_in_a_pipeline_is_refused(two):
    with pytest.raises(RankFailed, match="pp"):
        two.run(two_rounds, "pp", "whole", True)
