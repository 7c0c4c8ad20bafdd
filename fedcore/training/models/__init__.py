"""The models of the examples and of the published results that we compare with.

Each function makes a model with freshly drawn weights; `seeded` (fedcore.training.seeds) around the call fixes them.
The names of the tensors stay the same from release to release, since saved models and layouts refer to them.
"""

from fedcore.training.models.columns import ClassWeights, Rescale, Standardise
from fedcore.training.models.gpt import GPT, GPTConfig
from fedcore.training.models.resnet import resnet18_groupnorm
from fedcore.training.models.small import (
    GreyImages,
    char_lstm,
    digits_mlp,
    lenet,
    logistic_regression,
    mcmahan_2nn,
    mcmahan_cnn,
    mlp,
    small_cnn,
)

__all__ = [
    "GPT",
    "ClassWeights",
    "GPTConfig",
    "GreyImages",
    "Rescale",
    "Standardise",
    "char_lstm",
    "digits_mlp",
    "lenet",
    "logistic_regression",
    "mcmahan_2nn",
    "mcmahan_cnn",
    "mlp",
    "resnet18_groupnorm",
    "small_cnn",
]
