"""An evaluation on several ranks gives what one rank gives: sums add up, and what compares all examples sees all."""

import numpy as np
import pytest
from torch import nn

from fedcore.data import Split
from fedcore.errors import ConfigurationError
from fedcore.run.engine_config import EngineConfig
from fedcore.training import Loss, OptimizerConfig, Recipe, World, evaluate, make_engine, seeded, train
from fedcore.training.engines.building import ParallelPlan
from fedcore.training.losses import cox, squared_error
from fedcore.training.metrics import c_index, mae, r2, rmse

EXAMPLES = 2101  # a batch of an evaluation has 1024 of one rank


class Risk(nn.Sequential):
    """A small network for one value, which every engine can divide."""

    def __init__(self):
        with seeded(3):
            super().__init__(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))

    def parallel_plan(self):
        return ParallelPlan(layers=tuple("01234"), tensor={"0": "colwise", "2": "rowwise"})


def data_of(kind, n):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 3)).astype(np.float32)
    if kind == "numbers":
        return Split(x=x, y=(x @ np.array([1, -2, 0.5], np.float32) + 3))
    # Few different times: ties, also between the shares of two ranks.
    y = np.stack([rng.integers(1, 9, n), rng.random(n) < 0.6], axis=1)
    return Split(x=x, y=y.astype(np.float32))


def evaluated(settings, kind, *, sharded=False, n=EXAMPLES, trains=False):
    """An evaluation by this rank's engine, after some steps where it trains."""
    world = World.current()
    loss, metrics = {
        "numbers": (squared_error, [rmse, mae, r2]),
        "survival": (Loss("time", squared_error_of_time), [c_index]),
        "cox": (cox, [c_index]),
    }[kind]
    engine = make_engine(
        Recipe(build=Risk, optimizer=OptimizerConfig(lr=0.1), loss=loss, keep_weights=True),
        EngineConfig.from_mapping(settings, ranks=world.size),
        world,
    )
    data = data_of(kind, n)
    if sharded:  # uneven, and the first rank ends batches before the last
        cut = n // 10
        data = data.take(np.arange(cut) if world.rank == 0 else np.arange(cut, n))
    if trains:
        train(engine, data, batch_size=0, steps=3, seed=0)
    result = evaluate(engine, data, metrics=metrics, sharded=sharded)
    engine.close()
    return result.examples, result.targets, result.loss, {name: list(sums) for name, sums in result.sums.items()}


def squared_error_of_time(output, targets):
    return squared_error(output, targets[:, 0])


def check(ranks, settings, kind, **options):
    expected = evaluated({}, kind, trains=options.get("trains", False), n=options.get("n", EXAMPLES))
    for found in ranks.run(evaluated_with, settings, kind, options):
        assert found[:2] == expected[:2]
        assert found[2] == pytest.approx(expected[2], rel=1e-5)
        for name, sums in expected[3].items():
            # A pair whose risks differ by a rounding may be tied on one engine and not on the other.
            np.testing.assert_allclose(found[3][name], sums, rtol=1e-4, atol=1.0 if name == "c_index" else 1e-3)


def evaluated_with(settings, kind, options):
    return evaluated(settings, kind, **options)


@pytest.mark.parametrize("kind", ["numbers", "survival"])
@pytest.mark.parametrize(
    "settings", [{"engine": "ddp"}, {"engine": "fsdp"}, {"engine": "tp"}, {"engine": "pp"}], ids=str
)
def test_two_ranks_count_what_one_does(two, settings, kind):
    check(two, settings, kind)


@pytest.mark.parametrize("kind", ["numbers", "survival"])
def test_so_do_pairs_of_ranks(four, kind):
    check(four, {"engine": "ddp-tp", "tensor": 2}, kind)


def test_each_rank_may_have_examples_of_its_own(two):
    check(two, {"engine": "ddp"}, "survival", sharded=True)


def test_a_rank_without_an_example_adds_none(two):
    check(two, {"engine": "ddp"}, "survival", n=1)


def test_a_loss_over_the_batch_trains_on_split_layers(two):
    check(two, {"engine": "tp"}, "cox", trains=True)


def test_ranks_that_would_cut_a_batch_are_refused(two):
    for settings in ({"engine": "ddp"}, {"engine": "fsdp"}, {"engine": "pp"}):
        assert all("loss cox is over a whole batch" in text for text in two.run(refusal, settings))


def refusal(settings):
    try:
        evaluated(settings, "cox")
    except ConfigurationError as error:
        return str(error)
    return ""
