"""Gradients by reverse-mode automatic differentiation against differences of the loss, for every shipped model.

Everything is float64. `gradcheck` compares the Jacobian of each example's loss, one parameter at a time: all of a small
model's, a few out of every tensor of a larger one. The second check moves all parameters along one random direction, as
a training step does, and takes a central difference of the loss.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedcore.training import models, seeded
from fedcore.training.losses import cross_entropy


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A configuration of a shipped model that can be differentiated in a second.

    inputs: shape of one example. vocabulary: the inputs are characters below it instead of numbers.
    """

    make: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    classes: int
    vocabulary: int = 0


CASES = {
    "logistic_regression": Case(make=lambda: models.logistic_regression(5), inputs=(5,), classes=2),
    "softmax_regression": Case(make=lambda: models.logistic_regression(5, 3), inputs=(5,), classes=3),
    "mlp": Case(make=lambda: models.mlp(4, (6, 5), 3), inputs=(4,), classes=3),
    "digits_mlp": Case(make=models.digits_mlp, inputs=(64,), classes=10),
    "mcmahan_2nn": Case(make=models.mcmahan_2nn, inputs=(28, 28), classes=10),
    "mcmahan_cnn": Case(make=models.mcmahan_cnn, inputs=(28, 28), classes=10),
    "lenet": Case(make=models.lenet, inputs=(28, 28), classes=10),
    "small_cnn": Case(make=models.small_cnn, inputs=(28, 28), classes=62),
    "char_lstm": Case(make=lambda: models.char_lstm(6, embedding=2, hidden=3), inputs=(4,), classes=6, vocabulary=6),
    "resnet18_groupnorm": Case(make=lambda: models.resnet18_groupnorm(3, width=4), inputs=(3, 8, 8), classes=3),
    "resnet18_batchnorm": Case(
        make=lambda: models.resnet18_groupnorm(3, width=4, norm="batch"), inputs=(3, 8, 8), classes=3
    ),
}


def drawn(case: Case) -> tuple[nn.Module, Tensor, Tensor]:
    """The model in float64, three inputs [3, ...] and their targets; with characters the last target is ignored."""
    with seeded(7):
        # BatchNorm would change its running statistics with every evaluation of the function.
        model = case.make().double().eval()
        if case.vocabulary:
            x = torch.randint(case.vocabulary, (3, *case.inputs))
            y = torch.randint(case.classes, (3, *case.inputs))
            y[0, -1] = -100
        else:
            x = torch.randn(3, *case.inputs, dtype=torch.float64)
            y = torch.randint(case.classes, (3,))
    return model, x, y


def test_every_shipped_model_is_checked():
    shipped = {name for name in models.__all__ if inspect.isfunction(getattr(models, name))}
    assert "char_lstm" in shipped
    assert shipped - CASES.keys() == set()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_gradcheck(case):
    model, x, y = drawn(case)
    parameters = dict(model.named_parameters())
    sizes = [p.numel() for p in parameters.values()]
    start = parameters_to_vector(parameters.values()).detach()
    checked = some_of_each(sizes)

    def losses(shift):
        """Of each example, with the checked parameters moved by `shift`."""
        moved = start.index_add(0, checked, shift).split(sizes)
        state = {name: part.view_as(p) for (name, p), part in zip(parameters.items(), moved, strict=True)}
        return cross_entropy(functional_call(model, state, (x,)), y)

    shift = torch.zeros(len(checked), dtype=torch.float64, requires_grad=True)
    # A longer step would cross kinks of ReLU and max pooling; rounding is 1e-16 / eps, far below the tolerance.
    assert gradcheck(losses, shift, eps=1e-8, atol=1e-6, rtol=1e-4)


def some_of_each(sizes):
    """Rows of the vector of all parameters: all of them up to 200, else up to two out of every tensor."""
    if sum(sizes) <= 200:
        return torch.arange(sum(sizes))
    generator = torch.Generator().manual_seed(3)
    first = torch.tensor([0, *sizes[:-1]]).cumsum(0)
    return torch.cat(
        [at + torch.randperm(size, generator=generator)[:2] for at, size in zip(first, sizes, strict=True)]
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_slope_along_a_random_direction(case):
    model, x, y = drawn(case)
    start = parameters_to_vector(model.parameters()).detach()
    direction = torch.randn(len(start), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    direction /= direction.norm()
    cross_entropy(model(x), y).mean().backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    slope = gradient @ direction

    @torch.no_grad()
    def loss_at(distance):
        vector_to_parameters(start + distance * direction, model.parameters())
        return cross_entropy(model(x), y).mean()

    # Longer steps cross more of the kinks of ReLU and max pooling; in shorter ones rounding, 1e-16 / step, shows.
    step = 1e-7
    difference = (loss_at(step) - loss_at(-step)) / (2 * step)
    assert abs(slope) > 1e-4
    torch.testing.assert_close(difference, slope, rtol=1e-4, atol=1e-8)
