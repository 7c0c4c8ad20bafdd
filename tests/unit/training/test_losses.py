"""Losses of single examples against torch's means, and counts that add up."""

import math

import numpy as np
import pytest
import torch
from support.raising import raises
from torch import nn
from torch.nn import functional

from fedcore.data import Split
from fedcore.errors import UsageError
from fedcore.training import evaluate, local_engine, seeded
from fedcore.training.losses import IGNORED, cross_entropy, predicted
from fedcore.training.metrics import accuracy
from fedcore.training.models import char_lstm


def drawn(*shape, classes, seed=0, dtype=torch.float32):
    """Logits [*shape, classes] and targets [*shape]."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(*shape, classes, generator=generator, dtype=torch.float64).to(dtype)
    return logits, torch.randint(max(classes, 2), shape, generator=generator)


def ragged():
    """Logits [3, 5, 7]; the rows count five, two and no positions."""
    logits, targets = drawn(3, 5, classes=7)
    targets[1, 2:] = IGNORED
    targets[2] = IGNORED
    return logits, targets


def test_labels_cost_minus_the_log_of_their_probability():
    logits, labels = drawn(6, classes=4)
    probability = torch.softmax(logits.double(), dim=1)[torch.arange(6), labels]
    losses = cross_entropy(logits, labels)
    assert losses.shape == (6,)
    torch.testing.assert_close(losses.double(), -probability.log(), rtol=1e-6, atol=1e-6)


def test_one_logit_is_the_log_odds_of_the_second_class():
    logits, labels = drawn(6, classes=1)
    two = torch.cat([torch.zeros_like(logits), logits], dim=1)
    torch.testing.assert_close(cross_entropy(logits, labels), cross_entropy(two, labels))
    assert torch.equal(predicted(logits), predicted(two))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("classes", [1, 7])
def test_the_sum_of_the_losses_has_the_gradient_of_the_single_ones_bit_for_bit(classes, dtype):
    logits, labels = drawn(23, classes=classes, dtype=dtype)
    if classes > 1:
        labels[3] = IGNORED
    one_by_one, together = (logits.clone().requires_grad_() for _ in range(2))
    singles, total = cross_entropy(one_by_one, labels).sum(), cross_entropy.sum(together, labels)
    for loss in (singles, total):
        loss.backward(torch.full_like(loss, 1 / 23))
    assert torch.equal(together.grad, one_by_one.grad)
    torch.testing.assert_close(total, singles)


def test_the_losses_of_sequences_together_are_the_sum_of_their_means():
    logits, targets = ragged()
    assert torch.equal(cross_entropy.sum(logits, targets), cross_entropy(logits, targets).sum())


def test_a_sequence_costs_the_mean_of_its_counted_positions():
    logits, targets = ragged()
    losses = cross_entropy(logits, targets)
    first = functional.cross_entropy(logits[0], targets[0])
    second = functional.cross_entropy(logits[1, :2], targets[1, :2])
    torch.testing.assert_close(losses, torch.stack([first, second, torch.tensor(0.0)]))


def test_an_ignored_position_gets_no_gradient():
    logits, targets = ragged()
    logits.requires_grad_()
    cross_entropy(logits, targets).sum().backward()
    assert logits.grad[0].abs().sum() > 0
    assert logits.grad[1, 2:].abs().sum() == 0
    assert logits.grad[2].abs().sum() == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_losses_of_16_bit_logits_are_computed_in_32(dtype):
    logits, labels = drawn(64, classes=100, dtype=dtype)
    losses = cross_entropy(logits, labels)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, cross_entropy(logits.float(), labels))


@pytest.mark.parametrize(
    ("output", "targets"),
    [((6, 4), (5,)), ((6, 4), (6, 1)), ((6,), (6,)), ((3, 5, 7), (3, 7)), ((3, 5, 7), (3,)), ((2, 3, 4, 5), (2, 3, 4))],
)
def test_shapes_that_do_not_belong_together_are_refused(output, targets):
    zeros = torch.zeros(targets, dtype=torch.int64)
    with raises(UsageError, check="targets-do-not-fit"):
        cross_entropy(torch.zeros(output), zeros)
    if output != targets:  # for the accuracy that is a label of two
        with raises(UsageError, check="targets-do-not-fit"):
            accuracy.sums(torch.zeros(output), zeros)


def test_what_a_sequence_s_loss_is_the_mean_over_is_its_weight():
    logits, targets = ragged()
    counts = cross_entropy.counts(targets)
    assert counts.tolist() == [5, 2, 0]
    mean = float((cross_entropy(logits, targets).double() * counts).sum() / counts.sum())
    assert mean == pytest.approx(float(functional.cross_entropy(logits.movedim(2, 1), targets)))


def test_evaluation_counts_the_characters_of_sequences():
    # 2,100 rows: more than two batches of an evaluation, the last of them short.
    rng = np.random.default_rng(0)
    x = rng.integers(0, 7, (2100, 4))
    y = rng.integers(0, 7, (2100, 4))
    y[rng.random(y.shape) < 0.3] = IGNORED
    with seeded(0):
        model = char_lstm(7, embedding=3, hidden=5)
    result = evaluate(local_engine(model), Split(x=x, y=y))
    with torch.no_grad():
        logits = model(torch.from_numpy(x))
    counted = torch.from_numpy(y) != IGNORED
    assert (result.examples, result.targets) == (2100, int(counted.sum()))
    right = (logits.argmax(2) == torch.from_numpy(y))[counted]
    assert result.accuracy == float(right.double().mean())
    expected = functional.cross_entropy(logits.double().movedim(2, 1), torch.from_numpy(y))
    assert result.loss == pytest.approx(float(expected), rel=1e-6)


def test_uniform_predictions_cost_the_log_of_the_classes():
    model = nn.Sequential(nn.Embedding(9, 9))
    nn.init.zeros_(model[0].weight)
    x = np.zeros((4, 3), np.int64)
    assert evaluate(local_engine(model), Split(x=x, y=x)).loss == pytest.approx(math.log(9), rel=1e-6)
