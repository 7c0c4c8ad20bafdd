"""Which tensors stay on the client: by name, by layer type, and never half of a tied one."""

import pytest
from support.raising import raises
from torch import nn

from fedcore.errors import ConfigurationError
from fedcore.training.shared_tensors import batch_norm_names, personal_names, split_names

NAMES = ("body.0.weight", "body.0.bias", "head.weight", "head.bias", "counter")


def network() -> nn.Module:
    """A body with every kind of normalisation, and a head."""
    body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.GroupNorm(2, 4), nn.LayerNorm(4))
    return nn.ModuleDict(
        {"body": body, "conv": nn.Sequential(nn.BatchNorm2d(3, affine=False)), "head": nn.Linear(4, 2)}
    )


@pytest.mark.parametrize(
    ("patterns", "personal"),
    [
        ((), ()),
        (("head.*",), ("head.weight", "head.bias")),
        (("*.bias",), ("body.0.bias", "head.bias")),
        (("counter", "head.weight"), ("head.weight", "counter")),
        (("head.*", "*.weight"), ("body.0.weight", "head.weight", "head.bias")),
    ],
)
def test_patterns_name_what_is_personal(patterns, personal):
    shared, mine = split_names(NAMES, patterns)
    assert mine == personal
    assert shared == tuple(name for name in NAMES if name not in personal)


def test_a_pattern_that_matches_nothing_names_the_nearest():
    with pytest.raises(ConfigurationError, match=r"'Head\.weight'.*head\.weight"):
        split_names(NAMES, ["body.*", "Head.weight"])


@pytest.mark.parametrize("patterns", [("*",), ("body.*", "head.*", "counter")])
def test_something_must_be_left_to_federate(patterns):
    with raises(ConfigurationError, check="nothing-shared"):
        split_names(NAMES, patterns)


def test_fedbn_takes_batch_normalisation_and_no_other_kind():
    found = ("body.1.weight", "body.1.bias", "body.1.running_mean", "body.1.running_var", "body.1.num_batches_tracked")
    plain = ("conv.0.running_mean", "conv.0.running_var", "conv.0.num_batches_tracked")
    assert batch_norm_names(network()) == found + plain
    assert personal_names(network(), batch_norm=True) == found + plain
    assert personal_names(network(), ["head.*"], batch_norm=True) == (*found, *plain, "head.weight", "head.bias")


def test_a_model_that_is_one_batch_normalisation_has_all_of_it():
    assert len(batch_norm_names(nn.BatchNorm1d(3))) == 5


def test_fedbn_needs_batch_normalisation():
    with raises(ConfigurationError, check="no-batch-norm"):
        personal_names(nn.Sequential(nn.Linear(2, 2), nn.GroupNorm(1, 2)), batch_norm=True)


def test_names_with_signs_of_a_pattern_are_taken_as_they_are():
    model = nn.ModuleDict({"a[0]": nn.BatchNorm1d(2), "b": nn.Linear(2, 2)})
    assert len(personal_names(model, batch_norm=True)) == 5


def test_tied_tensors_are_personal_together_or_not_at_all():
    model = nn.ModuleDict(
        {"embedding": nn.Embedding(5, 3), "body": nn.Linear(3, 3), "head": nn.Linear(3, 5, bias=False)}
    )
    model["head"].weight = model["embedding"].weight
    with pytest.raises(ConfigurationError, match=r"'embedding\.weight'.*'head\.weight'"):
        personal_names(model, ["head.*"])
    assert personal_names(model, ["head.*", "embedding.*"]) == ("embedding.weight", "head.weight")


def test_a_module_that_is_used_twice_is_found_under_both_names():
    layer = nn.BatchNorm1d(2)
    model = nn.ModuleDict({"one": layer, "two": layer, "out": nn.Linear(2, 1)})
    assert len(personal_names(model, batch_norm=True)) == 10
