"""Federating a part of a model: the adapter trains and travels, all else stays frozen where it is.

The adapter is whatever still requires gradients: the matrices of LoRA (Hu et al. 2021), a new head, or any parameters
that `freeze_all_but` leaves. Every client and the server make the same frozen rest for themselves, from a file that
they all have or from a seed. Knows torch only; PEFT's models fit as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from fedcore.errors import ConfigurationError


def freeze_all_but(model: nn.Module, patterns: Sequence[str]) -> tuple[str, ...]:
    """Leave only the parameters trainable whose name fits a pattern; returns their names.

    With "*.lora_B.*" the matrices A of LoRA keep their first values, so that the mean of the clients' B gives the mean
    of their updates B A, and half as much travels (Sun et al. 2024, FFA-LoRA, arXiv 2403.12313). Raises
    ConfigurationError for a pattern that no parameter fits.
    """
    parameters = dict(model.named_parameters())
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in parameters):
            raise ConfigurationError(
                f"no parameter fits the pattern {pattern!r}; the names look like {next(iter(parameters), '')!r}"
            )
    for name, parameter in parameters.items():
        parameter.requires_grad_(any(fnmatchcase(name, pattern) for pattern in patterns))
    return adapter_names(model)


def adapter_names(model: nn.Module) -> tuple[str, ...]:
    """Names of the trainable parameters, in the model's order.

    Raises ConfigurationError where there is none, and where nothing is frozen: no whole model travels by mistake.
    """
    parameters = list(model.named_parameters())
    names = tuple(name for name, parameter in parameters if parameter.requires_grad)
    if not names:
        raise ConfigurationError("the model has no adapter: all of its parameters are frozen")
    if len(names) == len(parameters):
        raise ConfigurationError("the model has no adapter: none of its parameters is frozen")
    return names


def adapter_state(model: nn.Module) -> dict[str, Tensor]:
    """The adapter's tensors by name, in the model's order. They share the model's memory.

    Raises ConfigurationError as `adapter_names` does.
    """
    parameters = dict(model.named_parameters())
    return {name: parameters[name].detach() for name in adapter_names(model)}


@torch.no_grad()
def load_adapter_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy `state` into the model's adapter. The model is left as it was where names or shapes differ.

    Raises ConfigurationError that names the first tensor that is missing, unknown or of another shape.
    """
    own = adapter_state(model)
    for name in [*own, *state]:
        if name not in state:
            raise ConfigurationError(f"the adapter that was sent has no tensor {name!r}: {_SAME_ADAPTER}")
        if name not in own:
            raise ConfigurationError(f"this model's adapter has no tensor {name!r}: {_SAME_ADAPTER}")
        if own[name].shape != state[name].shape:
            raise ConfigurationError(
                f"tensor {name!r} of the adapter is {list(state[name].shape)}, expected {list(own[name].shape)}: "
                f"{_SAME_ADAPTER}"
            )
    for name, tensor in own.items():
        tensor.copy_(state[name])


_SAME_ADAPTER = "server and clients have to use the same base model and the same adapter settings"
