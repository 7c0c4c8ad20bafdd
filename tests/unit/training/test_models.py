"""Parameter counts that papers state, shapes, and weights that a seed decides."""

import pytest
import torch

from fedcore.training import seeded
from fedcore.training.models import (
    digits_mlp,
    lenet,
    logistic_regression,
    mcmahan_2nn,
    mcmahan_cnn,
    small_cnn,
)


@pytest.mark.parametrize(
    ("make", "parameters"),
    [
        # McMahan et al. (2017), section 3.
        (mcmahan_2nn, 199_210),
        (mcmahan_cnn, 1_663_370),
        # FLamby's Fed-Heart-Disease: 13 inputs and a bias.
        (lambda: logistic_regression(13), 14),
        (lenet, 44_426),
        (small_cnn, 22_974),
        (digits_mlp, 9_610),
        (lambda: logistic_regression(784, 10), 7_850),
    ],
)
def test_parameter_counts(make, parameters):
    assert sum(p.numel() for p in make().parameters()) == parameters


@pytest.mark.parametrize("make", [mcmahan_2nn, mcmahan_cnn, lenet, small_cnn])
@pytest.mark.parametrize("shape", [(3, 28, 28), (3, 1, 28, 28)])
def test_images_with_and_without_a_channel_give_the_same_logits(make, shape):
    model = make(62)
    images = torch.rand(3, 28, 28)
    logits = model(images.reshape(shape))
    assert logits.shape == (3, 62)
    assert torch.equal(logits, model(images))


def test_weights_are_a_function_of_the_seed():
    def state(seed):
        with seeded(seed):
            return lenet().state_dict()

    one, again, other = state(1), state(1), state(2)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one)
