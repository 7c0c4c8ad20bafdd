"""The ready-made losses against torch and against brute force, and what a loss of one's own has to be."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.raising import raises
from torch import nn
from torch.nn import functional

from fedcore.data import Split
from fedcore.errors import ConfigurationError, DataError, UsageError
from fedcore.run.engine_config import EngineConfig
from fedcore.training import Loss, OptimizerConfig, Recipe, World, evaluate, local_engine, make_engine, seeded, train
from fedcore.training.engines.replicated import SingleEngine
from fedcore.training.losses import (
    absolute_error,
    as_loss,
    binary_cross_entropy,
    cox,
    cross_entropy,
    huber,
    multi_label,
    squared_error,
)


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def survivals(n, seed=0):
    """Times with many ties, about half of them events, float32 [n, 2]."""
    rng = np.random.default_rng(seed)
    return torch.tensor(np.stack([rng.integers(1, 8, n), rng.random(n) < 0.5], axis=1).astype(np.float32))


def breslow(risk, targets):
    """By the definition: event by event, over all who are at risk then."""
    total, events = 0.0, 0
    for i, (time, event) in enumerate(targets.tolist()):
        if event:
            at_risk = [math.exp(risk[j]) for j in range(len(risk)) if targets[j, 0] >= time]
            total += math.log(sum(at_risk)) - float(risk[i])
            events += 1
    return total / max(events, 1)


@pytest.mark.parametrize(
    ("loss", "torchs"),
    [
        (squared_error, functional.mse_loss),
        (absolute_error, functional.l1_loss),
        (huber, functional.huber_loss),
        (multi_label, functional.binary_cross_entropy_with_logits),
    ],
)
def test_losses_of_numbers_are_those_of_torch(loss, torchs):
    output, targets = numbers(7, 3), numbers(7, 3, seed=1).sigmoid()
    losses = loss(output, targets)
    assert losses.shape == (7,)
    torch.testing.assert_close(losses.mean(), torchs(output, targets))


@pytest.mark.parametrize("loss", [squared_error, absolute_error, huber, binary_cross_entropy])
def test_one_value_of_an_example_may_have_a_dimension_of_its_own(loss):
    output, targets = numbers(7), (numbers(7, seed=1) > 0).double()
    expected = loss(output, targets)
    assert expected.dtype == torch.float32
    for a, b in [(output[:, None], targets), (output, targets[:, None]), (output[:, None], targets[:, None])]:
        assert torch.equal(loss(a, b), expected)
    with raises(UsageError, check="targets-do-not-fit", match=r"\[7, 2\].*\[7\]"):
        loss(numbers(7, 2), targets)


def test_one_label_is_not_several():
    with pytest.raises(UsageError, match="multi_label"):
        binary_cross_entropy(numbers(4, 3), torch.ones(4, 3))


@given(st.integers(1, 12), st.integers(0, 1000))
def test_cox_is_the_partial_likelihood_with_breslow_ties(n, seed):
    risk, targets = numbers(n, seed=seed), survivals(n, seed)
    found = cox(risk[:, None], targets)
    assert found.shape == ()
    assert float(found) == pytest.approx(breslow(risk.tolist(), targets), abs=1e-5)


def test_cox_without_events_has_no_gradient():
    risk = numbers(3).requires_grad_()
    loss = cox(risk, torch.tensor([[1.0, 0.0]] * 3))
    loss.backward()
    assert loss.item() == 0.0
    assert risk.grad.abs().sum() == 0


def test_cox_wants_times_and_events():
    with raises(UsageError, check="survival-targets"):
        cox(numbers(3), torch.ones(3))
    with raises(UsageError, check="event-targets"):
        cox(numbers(3), torch.full((3, 2), 2.0))


def test_float_targets_are_not_classes():
    """Cross entropy would take them for probabilities, and its loss became negative."""
    data = Split(x=np.zeros((4, 3), np.float32), y=np.array([0.5, 1.5, -2.0, 0.0], np.float32))
    for outputs in (1, 2):
        with raises(
            ConfigurationError,
            check="targets-not-classes",
            match=r"float32.*\[n\].*loss=squared_error.*metrics=\(rmse, r2\)",
        ):
            train(local_engine(nn.Linear(3, outputs)), data, batch_size=2, epochs=1, seed=0)


class TestOwn:
    @pytest.mark.parametrize(
        ("compute", "says"),
        [
            (
                lambda output, y: (output - y).square().mean(),
                {"check": "loss-shape", "match": r"\[\].*\[4\].*over=\"batch\""},
            ),
            (
                lambda output, y: (output[:, None] - y[:, None]).square(),
                {"check": "loss-shape", "match": r"\[4, 1\].*squeeze"},
            ),
            (
                lambda output, y: output[:, None] - y[None, :],
                {"check": "loss-shape", "match": r"\[4, 4\].*flatten\(1\)\.mean\(1\)"},
            ),
        ],
    )
    def test_what_is_no_loss_of_each_example_is_refused(self, compute, says):
        with raises(ConfigurationError, **says):
            Loss("own", compute)(numbers(4), numbers(4, seed=1))

    def test_a_loss_of_the_batch_is_one_number(self):
        with raises(ConfigurationError, check="loss-shape", match=r"\[4\].*over=\"batch\".*\[\]"):
            Loss("own", lambda output, y: output - y, over="batch")(numbers(4), numbers(4))

    def test_a_plain_function_is_the_loss_of_each_example(self):
        def pinball(output, targets):
            return (targets - output).abs()

        assert as_loss(pinball).name == "pinball"
        assert as_loss(pinball).over == "example"
        assert as_loss(cox) is cox
        with raises(ConfigurationError, check="not-a-loss", match=r"\bstr\b"):
            as_loss("mse")

    def test_an_evaluation_goes_by_the_loss_of_the_training(self):
        data = Split(x=numbers(9, 2).numpy(), y=numbers(9, seed=1).numpy())
        with seeded(0):
            model = nn.Linear(2, 1)
        for loss in (squared_error, absolute_error):
            result = evaluate(local_engine(model, loss=loss), data)
            with torch.no_grad():
                expected = loss(model(torch.tensor(data.x)), torch.tensor(data.y)).mean()
            assert result.loss == pytest.approx(float(expected))
            assert (result.examples, result.targets, result.metrics) == (9, 9, ())
        with pytest.raises(UsageError, match=r"metrics=\[accuracy\]"):
            result.accuracy  # noqa: B018


class TestOverTheBatch:
    def data(self, n=2500):
        return Split(x=numbers(n, 3).numpy(), y=survivals(n).numpy())

    def test_a_step_descends_the_loss_of_the_whole_batch(self):
        data = self.data(20)
        with seeded(0):
            model, by_hand = nn.Linear(3, 1), nn.Linear(3, 1)
        by_hand.load_state_dict(model.state_dict())
        summary = train(local_engine(model, OptimizerConfig(lr=0.5), loss=cox), data, batch_size=0, steps=1, seed=0)
        loss = cox(by_hand(torch.tensor(data.x)), torch.tensor(data.y))
        loss.backward()
        assert summary.loss == pytest.approx(loss.item())
        for parameter, same in zip(model.parameters(), by_hand.parameters(), strict=True):
            torch.testing.assert_close(parameter, same - 0.5 * same.grad)

    def test_an_evaluation_takes_the_whole_test_set_at_once(self):
        """Which is more than two batches of an evaluation."""
        data, model = self.data(), nn.Linear(3, 1)
        result = evaluate(local_engine(model, loss=cox), data)
        with torch.no_grad():
            expected = cox(model(torch.tensor(data.x)), torch.tensor(data.y))
        assert result.loss == pytest.approx(float(expected), rel=1e-5)

    @pytest.mark.parametrize(
        ("settings", "ranks", "says"),
        [
            ({"micro-batches": 2}, 1, {"check": "batch-loss", "match": r"cox.*micro-batches = 2"}),
            ({"engine": "ddp"}, 2, {"check": "batch-loss", "match": r"ddp .*\b2\b"}),
            ({"engine": "fsdp"}, 2, {"check": "batch-loss", "match": "fsdp"}),
            ({"engine": "ddp-tp", "tensor": 2}, 4, {"check": "batch-loss", "match": r"ddp-tp .*\b2\b"}),
            ({"engine": "pp"}, 2, {"check": "batch-loss", "match": r"\bpp\b"}),
        ],
    )
    def test_an_engine_that_would_cut_the_batch_is_refused_before_it_is_built(self, settings, ranks, says):
        recipe = Recipe(build=lambda: pytest.fail("built"), optimizer=OptimizerConfig(), loss=cox)
        with raises(ConfigurationError, **says):
            make_engine(recipe, EngineConfig.from_mapping(settings, ranks=ranks), World(size=ranks))

    def test_one_micro_batch_is_the_batch(self):
        recipe = Recipe(build=lambda: nn.Linear(3, 1), optimizer=OptimizerConfig(), loss=cox)
        config = EngineConfig.from_mapping({"micro-batches": 1}, ranks=1)
        assert isinstance(make_engine(recipe, config, World()), SingleEngine)


class TestMissing:
    @pytest.mark.parametrize("place", ["x", "y"])
    def test_missing_values_are_named(self, place):
        data = Split(x=numbers(6, 3).numpy(), y=numbers(6, seed=1).numpy())
        getattr(data, place)[[1, 4]] = np.nan
        engine = local_engine(nn.Linear(3, 1), loss=squared_error)
        columns = "0, 1, 2" if place == "x" else "0"
        says = rf"\b{place}\b.*2 of 6.*\b{columns}:"
        with raises(DataError, check="missing-values", match=says):
            evaluate(engine, data)
        with raises(DataError, check="missing-values", match=says):
            train(engine, data, batch_size=2, epochs=1, seed=0)

    def test_a_model_may_fill_them_in_itself(self):
        class Filled(nn.Linear):
            def forward(self, x):
                return super().forward(x.nan_to_num())

        data = Split(x=np.full((4, 2), np.nan, np.float32), y=np.ones(4, np.float32))
        assert math.isfinite(evaluate(local_engine(Filled(2, 1), loss=squared_error), data).loss)

    def test_a_training_that_diverges_is_no_missing_value(self):
        data = Split(x=np.full((4, 2), 1e30, np.float32), y=np.ones(4, np.float32))
        assert not math.isfinite(evaluate(local_engine(nn.Linear(2, 1), loss=squared_error), data).loss)


def test_classes_may_be_bools_and_small_integers():
    logits = numbers(5, 2)
    labels = torch.tensor([0, 1, 1, 0, 1])
    for dtype in (torch.bool, torch.uint8, torch.int32):
        assert torch.equal(cross_entropy(logits, labels.to(dtype)), cross_entropy(logits, labels))


class Doubling(torch.autograd.Function):
    """Its gradient is twice what comes in, written where that lies, which torch forbids and does not notice."""

    @staticmethod
    def forward(ctx, losses):
        return losses.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.mul_(2)


def test_a_gradient_that_the_loss_writes_into_is_another_one_in_the_next_step():
    data = Split(x=np.ones((8, 1), np.float32), y=np.ones((8, 1), np.float32))

    def weight_after(steps, loss):
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        train(local_engine(model, OptimizerConfig(lr=0.1), loss=loss), data, batch_size=8, seed=1, steps=steps)
        return model.weight.item()

    doubled = Loss("doubled", squared_error.compute, total=lambda o, t: Doubling.apply((o - t).square().sum()))
    slow, quick = [1 - (1 - 0.2) ** n for n in (1, 3)], [1 - (1 - 0.4) ** n for n in (1, 3)]
    assert [weight_after(n, squared_error) for n in (1, 3)] == pytest.approx(slow)
    assert [weight_after(n, doubled) for n in (1, 3)] == pytest.approx(quick)
