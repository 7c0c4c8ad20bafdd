"""What of users' programs cannot be done is refused by its rule; schedules are those of torch."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.raising import raises
from support.several_tensors import SGD, Listed
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from fedcore.errors import ConfigurationError, DataError, EncodingError, UsageError
from fedcore.training import EngineConfig, Loss, OptimizerConfig, World, evaluate, local_engine, make_engine, train
from fedcore.training.engines import Engine, Proximal, Recipe
from fedcore.training.engines.streams import rows_to_pick
from fedcore.training.losses import cross_entropy, squared_error
from fedcore.training.optimizers import Rates

ROWS = [(torch.full((2,), float(n)), torch.tensor(float(n))) for n in range(5)]


class Stream(IterableDataset[Any]):
    """Examples without a length."""

    def __iter__(self) -> Iterator[Any]:
        yield from ROWS


def engine(loss: Any = squared_error, **config: Any) -> Engine:
    recipe = Recipe(build=lambda: nn.Linear(2, 1), optimizer=SGD, loss=loss)
    return make_engine(recipe, EngineConfig(**config), World(device=torch.device("cpu")))


# --- streams ----------------------------------------------------------------------------------------------------------


def test_a_stream_is_read_as_often_as_its_steps_need() -> None:
    seen = [batch.y.tolist() for batch in engine().batches(Stream(), batch_size=2, steps=4, seed=1)]
    assert seen == [[0, 1], [2, 3], [4], [0, 1]]


def test_items_of_a_stream_may_be_batches() -> None:
    batches = [(torch.ones(3, 2), torch.ones(3)), (torch.ones(1, 2), torch.ones(1))]
    assert [batch.total for batch in engine().batches(iter(batches), batch_size=0, steps=2, seed=1)] == [3, 1]


def test_a_stream_without_a_length_counts_what_it_gave() -> None:
    assert train(engine(), Stream(), batch_size=2, steps=4, seed=1).examples == 7
    assert evaluate(engine(), Stream()).examples == 5


def test_a_shuffled_loader_goes_by_the_seed_alone() -> None:
    loader = DataLoader(Listed(ROWS), batch_size=2, shuffle=True)

    def order(seed: int) -> list[float]:
        torch.randn(3)
        return [y for batch in engine().batches(loader, batch_size=2, epochs=1, seed=seed) for y in batch.y.tolist()]

    assert order(1) == order(1)
    assert sorted(order(2)) == [0, 1, 2, 3, 4]
    assert len({tuple(order(seed)) for seed in range(4)}) > 1


@pytest.mark.parametrize(
    ("data", "settings", "check"),
    [
        (Stream(), {"batch_size": 2, "epochs": 1}, "no-length"),
        (Stream(), {"batch_size": 2, "steps": 1, "workers": 2}, "stream-workers"),
        (DataLoader(Listed(ROWS), batch_size=2), {"batch_size": 4, "epochs": 1}, "batch-size-differs"),
    ],
    ids=["epochs without a length", "workers", "two batch sizes"],
)
def test_settings_that_a_stream_cannot_have(data: Any, settings: Any, check: str) -> None:
    with raises(ConfigurationError, check=check):
        train(engine(), data, seed=1, **settings)


def test_an_iterator_that_ends_too_soon_is_said() -> None:
    with raises(DataError, check="data-ended"):
        train(engine(), iter(ROWS), batch_size=2, steps=9, seed=1)


def test_rows_of_a_stream_cannot_be_picked() -> None:
    assert rows_to_pick(Listed(ROWS)) == 5
    for data in (Stream(), DataLoader(Listed(ROWS))):
        with raises(ConfigurationError, check="no-rows"):
            rows_to_pick(data)


# --- losses of the model and the batch --------------------------------------------------------------------------------


def scalar(model: Any, batch: Any) -> Tensor:
    x, y = batch
    loss: Tensor = (model(x).squeeze(1) - y).square().mean()
    return loss


def test_one_number_for_a_batch_needs_whole_batches() -> None:
    train(engine(scalar and Loss("one", scalar, of="model")), Listed(ROWS), batch_size=0, steps=1, seed=1)
    with raises(ConfigurationError, check="batch-loss"):
        train(engine(Loss("one", scalar, of="model"), micro_batches=2), Listed(ROWS), batch_size=0, steps=1, seed=1)


def test_a_declared_mean_may_be_cut() -> None:
    start = nn.Linear(2, 1).state_dict()
    weights = []
    for loss, parts in ((squared_error, 0), (Loss("mean", scalar, over="mean", of="model"), 3)):
        one = engine(loss, micro_batches=parts)
        one.module.load_state_dict(start)
        train(one, Listed(ROWS), batch_size=0, steps=2, seed=1)
        weights.append(one.module.weight.detach().clone())
    torch.testing.assert_close(*weights)


def test_its_evaluation_is_over_all_examples() -> None:
    own, usual = engine(Loss("mean", scalar, over="mean", of="model")), engine()
    usual.module.load_state_dict(own.module.state_dict())
    assert evaluate(own, Listed(ROWS)).loss == pytest.approx(evaluate(usual, Listed(ROWS)).loss)


def test_outputs_of_several_tensors_need_a_loss_that_picks() -> None:
    for output, check in (
        ((torch.ones(4, 2), torch.ones(4)), "several-outputs"),
        (SimpleNamespace(logits=torch.ones(4, 3, 2)), "whose-positions"),
    ):
        with raises(UsageError, check=check):
            cross_entropy(output, torch.zeros(4, dtype=torch.int64))
    logits = SimpleNamespace(logits=torch.ones(4, 2))
    assert cross_entropy(logits, torch.zeros(4, dtype=torch.int64)).shape == (4,)


# --- models and optimizers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "optimizer", "check"),
    [
        (lambda: nn.LazyLinear(2), SGD, "lazy-layers"),
        (lambda: "a model", SGD, "not-a-model"),
        (lambda: nn.Linear(2, 1), lambda module: (SGD(module), SGD(module)), "not-an-optimizer"),
    ],
    ids=["lazy", "no model", "two optimizers"],
)
def test_models_and_optimizers_that_are_none(build: Any, optimizer: Any, check: str) -> None:
    with raises(ConfigurationError, check=check):
        make_engine(Recipe(build=build, optimizer=optimizer), EngineConfig(), World())


def test_a_complex_parameter_is_refused_by_its_rule() -> None:
    with raises(EncodingError, check="dtype-not-held"):
        local_engine(nn.Linear(2, 2, dtype=torch.complex64)).layout()


def lbfgs(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(module.parameters())


def test_lbfgs_goes_by_the_loss_alone() -> None:
    one = make_engine(Recipe(build=lambda: nn.Linear(2, 1), optimizer=lbfgs, loss=squared_error), EngineConfig())
    (batch,) = one.batches(Listed(ROWS), batch_size=0, steps=1, seed=1)
    one.step(batch)
    assert one.examples_trained == 5
    with raises(ConfigurationError, check="closure-rule"):
        one.step(batch, rule=Proximal(mu=0.1, anchor=one.snapshot()))


def test_several_models_are_one_with_their_names() -> None:
    def build() -> Any:
        return {"g": nn.Linear(2, 2), "d": nn.Linear(2, 1)}

    one = make_engine(Recipe(build=build, optimizer=SGD), EngineConfig())
    assert [spec.name for spec in one.layout().specs] == ["g.weight", "g.bias", "d.weight", "d.bias"]


def test_prepare_gives_back_what_it_was_given() -> None:
    one = engine()
    optimizer = SGD(one.module)
    assert one.prepare(one.module) is one.module
    assert one.prepare(one.module, optimizer) == (one.module, optimizer)
    with raises(ConfigurationError, check="cannot-prepare"):
        one.prepare("a model")


def test_batch_normalisation_together_is_not_for_every_engine() -> None:
    recipe = Recipe(build=lambda: nn.BatchNorm1d(2), optimizer=SGD, sync_batch_norm=True)
    make_engine(recipe, EngineConfig())
    with raises(ConfigurationError, check="sync-batch-norm"):
        make_engine(recipe, EngineConfig(engine="fsdp"))


# --- learning rates ---------------------------------------------------------------------------------------------------


def rates_of(config: dict[str, Any], server_round: int, steps: int) -> list[float]:
    optimizer = OptimizerConfig(lr=0.5)(nn.Linear(2, 1))
    rates = Rates.of(config, server_round)
    assert rates is not None
    rates = rates.over(optimizer, steps)
    values = []
    for done in range(steps):
        rates.set(done)
        values.append(optimizer.param_groups[0]["lr"])
    rates.reset()
    assert optimizer.param_groups[0]["lr"] == 0.5
    return values


def test_a_cosine_over_steps_is_that_of_torch() -> None:
    optimizer = OptimizerConfig(lr=0.5)(nn.Linear(2, 1))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
    expected = []
    for _ in range(6):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates_of({"lr-over-steps": "cosine"}, 1, 6) == pytest.approx(expected)


def test_rounds_and_steps_multiply_and_warm_up() -> None:
    config = {"lr-over-rounds": "linear", "num-server-rounds": 4}
    assert [rates_of(config, number, 1)[0] for number in range(1, 5)] == pytest.approx([0.5, 0.375, 0.25, 0.125])
    both = {**config, "lr-over-steps": "linear", "warmup-steps": 2}
    assert rates_of(both, 3, 4) == pytest.approx([0.125, 0.25, 0.25, 0.125])
    assert Rates.of({"num-server-rounds": 4}, 1) is None


@pytest.mark.parametrize("config", [{"lr-over-steps": "step"}, {"lr-over-rounds": "linear"}, {"warmup-steps": -1}])
def test_a_schedule_that_means_nothing_is_refused(config: dict[str, Any]) -> None:
    with raises(ConfigurationError, check="rate-schedule"):
        Rates.of(config, 1)
