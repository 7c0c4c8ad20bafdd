"""The local loop against gradients worked out by hand, and its promises about order."""

import copy
import math

import numpy as np
import pytest
import torch
from support.raising import raises
from torch import nn

from fedcore.data import Split
from fedcore.errors import ConfigurationError
from fedcore.state import ModelState
from fedcore.training import OptimizerConfig, derive_seed, evaluate, local_engine, seeded, train
from fedcore.training.models import lenet, logistic_regression

SGD = OptimizerConfig(lr=0.1)


def made_up(n=50, features=4, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, features)).astype(np.float32)
    return Split(x=x, y=(x[:, 0] + 0.3 * rng.normal(size=n) > 0).astype(np.int64))


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def trained(data, *, seed=1, init=0, model=None, **settings):
    if model is None:
        with seeded(init):
            model = logistic_regression(data.x.shape[1])
    else:
        model = copy.deepcopy(model)
    summary = train(local_engine(model, SGD), data, seed=seed, **settings)
    return weights(model), summary


def test_a_full_batch_step_is_the_gradient_step():
    data = made_up()
    with seeded(0):
        before = weights(logistic_regression(4)).double().numpy()
    after, summary = trained(data, batch_size=0, epochs=1)
    inputs = np.c_[data.x.astype(np.float64), np.ones(len(data))]
    margins = inputs @ before
    gradient = inputs.T @ (1 / (1 + np.exp(-margins)) - data.y) / len(data)
    np.testing.assert_allclose(after.numpy(), before - 0.1 * gradient, rtol=0, atol=1e-6)
    loss = np.mean(np.log1p(np.exp(margins)) - data.y * margins)
    assert summary.loss == pytest.approx(loss, rel=1e-6)
    assert (summary.examples, summary.steps) == (50, 1)


def test_the_same_seed_gives_the_same_bits_and_another_does_not():
    data = made_up()
    one, _ = trained(data, batch_size=8, epochs=2, seed=5)
    with seeded(99):
        torch.rand(10)
        again, _ = trained(data, batch_size=8, epochs=2, seed=5)
    other, _ = trained(data, batch_size=8, epochs=2, seed=6)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_dropout_repeats_too_and_training_leaves_the_global_generator_alone():
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 2))
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    one, _ = trained(made_up(), model=model, batch_size=10, epochs=1, seed=5)
    assert torch.equal(torch.rand(4), expected)
    again, _ = trained(made_up(), model=model, batch_size=10, epochs=1, seed=5)
    assert torch.equal(one, again)


def test_steps_and_epochs_count_the_same_updates():
    data = made_up(50)
    # Batches of 8 out of 50: seven a pass, the last of two examples.
    epochs, by_epochs = trained(data, batch_size=8, epochs=3)
    steps, by_steps = trained(data, batch_size=8, steps=21)
    assert torch.equal(epochs, steps)
    assert by_epochs == by_steps
    _, part = trained(data, batch_size=8, steps=10)
    assert part.steps == 10


def test_every_example_is_seen_once_a_pass():
    # One weight and a tiny step: the sum of the gradients is the sum over the examples seen.
    n = 40
    data = Split(x=np.eye(n, dtype=np.float32), y=np.ones(n, np.int64))
    model = nn.Linear(n, 1, bias=False)
    nn.init.zeros_(model.weight)
    train(local_engine(model, OptimizerConfig(lr=1.0)), data, batch_size=7, epochs=2, seed=3)
    # Row i moves weight i alone; the first pass adds 0.5 / 7 (or / 5 in the short batch).
    assert (model.weight > 0.1).all()


def test_momentum_and_adam_are_the_optimizers_of_torch():
    data = made_up()
    with seeded(0):
        start = logistic_regression(4)
    for config, make in (
        (OptimizerConfig(lr=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
        (OptimizerConfig(name="adam", lr=0.1), lambda p: torch.optim.Adam(p, 0.1)),
    ):
        ours, theirs = copy.deepcopy(start), copy.deepcopy(start)
        train(local_engine(ours, config), data, batch_size=0, steps=5, seed=0)
        optimizer = make(theirs.parameters())
        for _ in range(5):
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(
                theirs(torch.tensor(data.x)).squeeze(1), torch.tensor(data.y).float()
            ).backward()
            optimizer.step()
        torch.testing.assert_close(weights(ours), weights(theirs), rtol=0, atol=1e-6)


def test_evaluation_weighs_every_example_alike():
    # More rows than one evaluation batch, so that the last one is short.
    data = made_up(1500)
    model = nn.Linear(4, 3)
    result = evaluate(local_engine(model), data)
    logits = model(torch.tensor(data.x)).detach().double()
    labels = torch.tensor(data.y)
    assert result.loss == pytest.approx(float(nn.functional.cross_entropy(logits, labels)), 1e-6)
    assert result.accuracy == float((logits.argmax(1) == labels).double().mean())
    assert result.examples == 1500


def test_evaluation_changes_nothing():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    before = copy.deepcopy(model.state_dict())
    evaluate(local_engine(model), made_up())
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_running_variance_that_rounding_left_below_zero_is_loaded_as_zero():
    """The root of one below -eps would be nan, and so every loss after it."""
    engine = local_engine(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)))
    arrays = {name: value.numpy().copy() for name, value in engine.module.state_dict().items()}
    arrays["0.running_var"][:] = (-0.5, 1.0, 1e10, 0.25)
    arrays["0.running_mean"][:] = -1.0
    engine.load(ModelState.from_arrays(arrays))
    assert engine.module[0].running_var.tolist() == [0.0, 1.0, 1e10, 0.25]
    assert engine.module[0].running_mean.tolist() == [-1.0] * 4
    assert math.isfinite(evaluate(engine, made_up()).loss)


def test_grey_levels_are_scaled_to_one():
    levels = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
    labels = np.arange(20) % 10
    model = lenet()
    as_bytes = evaluate(local_engine(model), Split(x=levels, y=labels))
    as_floats = evaluate(local_engine(model), Split(x=levels.astype(np.float32) / 255, y=labels))
    assert as_bytes.loss == pytest.approx(as_floats.loss, rel=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 8},
        {"batch_size": 8, "epochs": 1, "steps": 1},
        {"batch_size": 8, "epochs": -1, "steps": 3},
        {"batch_size": -1, "epochs": 1},
    ],
)
def test_settings_without_a_meaning_are_refused(settings):
    with pytest.raises(ConfigurationError):
        trained(made_up(), **settings)


@pytest.mark.parametrize(
    "settings",
    [{"name": "lion"}, {"lr": 0.0}, {"lr": math.nan}, {"momentum": 1.0}, {"weight_decay": -1.0}],
)
def test_optimizers_without_a_meaning_are_refused(settings):
    with pytest.raises(ConfigurationError):
        OptimizerConfig(**settings)


def test_a_client_without_examples_is_an_error():
    empty = Split(x=np.empty((0, 4), np.float32), y=np.empty(0, np.int64))
    with raises(ConfigurationError, check="no-examples"):
        evaluate(local_engine(logistic_regression(4)), empty)


def test_derived_seeds_tell_their_parts_apart():
    parts = [("a", 1, 2), ("a", 2, 1), ("a", 12), ("a", "1", 2), ("a1", 2), ("a", 1, 2, 0)]
    assert len({derive_seed(*p) for p in parts}) == len(parts)
    assert derive_seed("initial weights", 42) == derive_seed("initial weights", 42)
