"""Selects the tensors of a model that are federated: all, all but a client's own, or an adapter alone.

Personal tensors never leave the client. They are named by patterns, or found by the type of their layer: FedPer
(Arivazhagan et al. 2019, "Federated Learning with Personalization Layers") keeps the head of the network on the client;
FedBN (Li et al. 2021, ICLR) its batch normalisation layers, parameters and running statistics.

An adapter is whatever still requires gradients: the matrices of LoRA (Hu et al. 2021), a new head, or any parameters
that `freeze_all_but` leaves. It trains and travels; all else stays frozen where it is, and every client and the server
make it for themselves, from a file that they all have or from a seed.
"""

from __future__ import annotations

import difflib
import glob
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedcore.errors import ConfigurationError


def split_names(names: Iterable[str], patterns: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(shared, personal): `names` in their order, those that match a pattern and those that do not.

    Raises ConfigurationError for a pattern that matches nothing, and if nothing would be left to share.

    Args:
        patterns: as for `fnmatch`, case counts: "head.*" is everything below `head`. None makes everything shared.
    """
    names = tuple(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.3) or names[:3]
            raise ConfigurationError(
                f"no tensor of the model matches the personal pattern {pattern!r}; there are {', '.join(near)}, ..."
            )
    personal = tuple(name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))
    if patterns and len(personal) == len(names):
        raise ConfigurationError(
            f"the personal patterns {', '.join(map(repr, patterns))} match every tensor of the model, so that nothing "
            "is left to federate; leave some out",
            check="nothing-shared",
        )
    mine = set(personal)
    return tuple(name for name in names if name not in mine), personal


def personal_names(model: nn.Module, patterns: Sequence[str] = (), *, batch_norm: bool = False) -> tuple[str, ...]:
    """The personal tensors of `model`, in the order of its state dict.

    Raises ConfigurationError as `split_names` does, for a model without batch normalisation if that is asked for,
    and if tensors that share their memory would be parted.

    Args:
        batch_norm: all of its batch normalisation too.
    """
    tensors = model.state_dict(keep_vars=True)
    norms = batch_norm_names(model) if batch_norm else ()
    if batch_norm and not norms:
        raise ConfigurationError(
            "the model has no batch normalisation layers that could be personal", check="no-batch-norm"
        )
    _, personal = split_names(tensors, [*patterns, *map(glob.escape, norms)])
    mine = set(personal)
    homes: dict[int, str] = {}
    for name, tensor in tensors.items():
        twin = homes.setdefault(id(tensor), name)
        if (twin in mine) != (name in mine):
            raise ConfigurationError(
                f"{twin!r} and {name!r} are one tensor under two names; make both personal, or neither"
            )
    return personal


def batch_norm_names(model: nn.Module) -> tuple[str, ...]:
    """Names of all tensors of batch normalisation layers (1d, 2d, 3d, synchronised), running statistics included."""
    layers = model.named_modules(remove_duplicate=False)
    prefixes = tuple(f"{name}." if name else "" for name, layer in layers if isinstance(layer, _BatchNorm))
    return tuple(name for name in model.state_dict(keep_vars=True) if name.startswith(prefixes))


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
                f"no parameter fits the pattern {pattern!r}; the names look like {next(iter(parameters), '')!r}",
                check="no-such-parameter",
            )
    for name, parameter in parameters.items():
        parameter.requires_grad_(any(fnmatchcase(name, pattern) for pattern in patterns))
    return adapter_names(model)


def adapter_names(model: nn.Module) -> tuple[str, ...]:
    """Names of the trainable parameters, in the model's order.

    Raises ConfigurationError if there is none, and if nothing is frozen: no whole model travels by mistake.
    """
    parameters = list(model.named_parameters())
    names = tuple(name for name, parameter in parameters if parameter.requires_grad)
    if not names:
        raise ConfigurationError("the model has no adapter: all of its parameters are frozen", check="all-frozen")
    if len(names) == len(parameters):
        raise ConfigurationError("the model has no adapter: none of its parameters is frozen", check="nothing-frozen")
    return names
