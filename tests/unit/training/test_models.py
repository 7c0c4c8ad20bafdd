"""Parameter counts that papers state, shapes, and weights that a seed decides."""

import pytest
import torch

from fedcore.errors import ConfigurationError
from fedcore.training import seeded
from fedcore.training.models import (
    char_lstm,
    digits_mlp,
    lenet,
    logistic_regression,
    mcmahan_2nn,
    mcmahan_cnn,
    resnet18_groupnorm,
    small_cnn,
)

EVERY_MODEL = {
    "digits_mlp": digits_mlp,
    "lenet": lenet,
    "logistic_regression": lambda: logistic_regression(13),
    "mcmahan_2nn": mcmahan_2nn,
    "mcmahan_cnn": mcmahan_cnn,
    "small_cnn": small_cnn,
    "char_lstm": lambda: char_lstm(75),
    "resnet18_groupnorm": lambda: resnet18_groupnorm(10, width=8),
    "resnet18_batchnorm": lambda: resnet18_groupnorm(10, width=8, norm="batch"),
}


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
        # He et al. (2015) with the stem for small images; GroupNorm has BatchNorm's scale and shift.
        (lambda: resnet18_groupnorm(10), 11_173_962),
        (lambda: resnet18_groupnorm(10, norm="batch"), 11_173_962),
        (lambda: char_lstm(75), 798_720 + 265 * 75),
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


def test_the_lstm_has_the_papers_parameters_up_to_bias_and_peepholes():
    """McMahan et al. (2017): 866,578. Their cells have one bias a gate and three peephole weights a unit."""
    model = char_lstm(258)
    second_biases = sum(p.numel() for name, p in model.named_parameters() if name.startswith("lstm.bias_hh"))
    peepholes = 2 * 3 * 256
    assert sum(p.numel() for p in model.parameters()) - second_biases + peepholes == 866_578


def test_the_lstm_reads_forward_only():
    model = char_lstm(20)
    text = torch.randint(20, (3, 12))
    logits = model(text)
    assert logits.shape == (3, 12, 20)
    changed = text.clone()
    changed[:, 7] = (text[:, 7] + 1) % 20
    differs = (model(changed) != logits).any(dim=2)
    assert not differs[:, :7].any()
    assert differs[:, 7:].all()


@pytest.mark.parametrize(("channels", "size"), [(3, 32), (1, 28)])
def test_the_resnet_halves_an_image_three_times(channels, size):
    model = resnet18_groupnorm(10, channels, width=8)
    images = torch.rand(2, channels, size, size)
    assert model(images).shape == (2, 10)
    before_pooling = model[: list(dict(model.named_children())).index("pool")]
    assert before_pooling(images).shape == (2, 64, size // 8 + (size % 8 > 0), size // 8 + (size % 8 > 0))


def test_group_norm_keeps_no_state_and_sees_one_image_at_a_time():
    model = resnet18_groupnorm(10, width=8)
    assert list(model.buffers()) == []
    images = torch.rand(4, 3, 16, 16)
    torch.testing.assert_close(model(images)[:1], model(images[:1]))


def test_batch_norm_is_found_by_its_names():
    model = resnet18_groupnorm(10, width=8, norm="batch")
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    # Two in each of eight blocks, the stem's, and three on shortcuts that change the shape.
    assert len(norms) == 2 * 8 + 1 + 3
    assert sum(name.endswith("running_mean") for name in model.state_dict()) == len(norms)


@pytest.mark.parametrize("settings", [{"norm": "layer"}, {"groups": 3}, {"groups": 0}])
def test_a_normalisation_without_a_meaning_is_refused(settings):
    with pytest.raises(ConfigurationError):
        resnet18_groupnorm(10, width=8, **settings)


STATE_NAMES = {
    "logistic_regression": ["linear.weight", "linear.bias"],
    "digits_mlp": ["hidden1.weight", "hidden1.bias", "output.weight", "output.bias"],
    "mcmahan_2nn": ["hidden1.weight", "hidden1.bias", "hidden2.weight", "hidden2.bias", "output.weight", "output.bias"],
    "small_cnn": ["conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias", "output.weight", "output.bias"],
    "char_lstm": [
        "embedding.weight",
        *(f"lstm.{kind}_{side}_l{layer}" for layer in (0, 1) for kind in ("weight", "bias") for side in ("ih", "hh")),
        "output.weight",
        "output.bias",
    ],
    "resnet18_groupnorm": [
        *("conv1.weight", "norm1.weight", "norm1.bias"),
        *(
            f"stage{stage}.{block}.{tensor}"
            for stage in (1, 2, 3, 4)
            for block in (0, 1)
            for tensor in (
                *("conv1.weight", "norm1.weight", "norm1.bias", "conv2.weight", "norm2.weight", "norm2.bias"),
                *(("shortcut.conv.weight", "shortcut.norm.weight", "shortcut.norm.bias") if stage > 1 > block else ()),
            )
        ),
        *("output.weight", "output.bias"),
    ],
}


@pytest.mark.parametrize("model", STATE_NAMES)
def test_the_names_of_tensors_stay(model):
    assert list(EVERY_MODEL[model]().state_dict()) == STATE_NAMES[model]


@pytest.mark.parametrize("make", EVERY_MODEL.values(), ids=EVERY_MODEL.keys())
def test_weights_are_a_function_of_the_seed(make):
    def state(seed):
        with seeded(seed):
            return make().state_dict()

    one, again, other = state(1), state(1), state(2)
    assert list(one) == list(again)
    assert all(torch.equal(one[name], again[name]) for name in one)
    # Normalisation starts at one and zero whatever the seed.
    drawn = [name for name in one if "norm" not in name]
    assert not any(torch.equal(one[name], other[name]) for name in drawn)
