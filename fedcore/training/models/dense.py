"""Fully connected models: logistic regression and multilayer perceptrons."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence

from torch import nn


def logistic_regression(inputs: int, classes: int = 2) -> nn.Sequential:
    """One linear layer; for two classes a single logit (inputs + 1 parameters)."""
    outputs = 1 if classes == 2 else classes
    return nn.Sequential(OrderedDict(linear=nn.Linear(inputs, outputs)))


def mlp(inputs: int, hidden: Sequence[int], classes: int) -> nn.Sequential:
    """Fully connected layers with ReLU between them; the input is flattened."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    widths = [inputs, *hidden]
    for number, (before, after) in enumerate(itertools.pairwise(widths), start=1):
        layers[f"hidden{number}"] = nn.Linear(before, after)
        layers[f"relu{number}"] = nn.ReLU()
    layers["output"] = nn.Linear(widths[-1], classes)
    return nn.Sequential(layers)


def digits_mlp() -> nn.Sequential:
    """64-128-10 for scikit-learn's digits: 9,610 parameters."""
    return mlp(64, (128,), 10)


def mcmahan_2nn(classes: int = 10) -> nn.Sequential:
    """The "2NN" of McMahan et al. (2017), section 3: 784-200-200-10, 199,210 parameters."""
    return mlp(28 * 28, (200, 200), classes)
