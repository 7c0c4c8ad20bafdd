"""A model whose weights have no memory yet, and memory for the part of it that a rank keeps."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from fedcore.training.engines.base import Recipe


def unplaced(recipe: Recipe) -> nn.Module:
    """A model to take parts of: without memory where a state will give it its values, real where that is not enough."""
    empty = None if recipe.keep_weights else on_meta(recipe.build)
    return recipe.build() if empty is None else empty


def on_meta(build: Callable[[], nn.Module]) -> nn.Module | None:
    """The model without memory for its weights; None where it has values that no state brings back."""
    try:
        with torch.device("meta"):
            module = build()
    except RuntimeError:
        # It computes with values; whatever else is wrong shows when it is built in memory.
        return None
    loaded = module.state_dict()
    others = [name for name, _ in module.named_buffers(remove_duplicate=False) if name not in loaded]
    attributes = (value for part in module.modules() for value in vars(part).values())
    return None if others or any(isinstance(value, Tensor) for value in attributes) else module


def outline(module: nn.Module) -> nn.Module:
    """A copy on the meta device: all shapes and no values, whatever the size of the model."""
    plain = (value for part in module.modules() for value in vars(part).values() if isinstance(value, Tensor))
    tensors: Iterator[Tensor] = itertools.chain(module.parameters(), module.buffers(), plain)
    return copy.deepcopy(module, {id(tensor): _like(tensor, torch.device("meta")) for tensor in tensors})


@torch.no_grad()
def place(module: nn.Module, device: torch.device) -> None:
    """Move parameters and buffers to `device`, in place.

    Those without memory get some, and are NaN until they are loaded, so that nobody trains without. Tensors that go by
    several names (tied weights) stay one.
    """
    placed: dict[int, Tensor] = {}
    for part in module.modules():
        own = [*part.named_parameters(recurse=False, remove_duplicate=False), *part.named_buffers(recurse=False)]
        for name, tensor in own:
            if id(tensor) not in placed:
                placed[id(tensor)] = _like(tensor, device)
                if tensor.is_meta:
                    placed[id(tensor)].fill_(torch.nan if tensor.is_floating_point() else 0)
            # Not through the dictionaries of the module: recurrent layers listen to the assignment.
            setattr(part, name, placed[id(tensor)])


def tied_names(module: nn.Module) -> list[list[str]]:
    """Names of the parameters that go by more than one, grouped by parameter."""
    groups: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def _like(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on another device, without its values if it or the device has none."""
    moved = torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.detach().to(device)
    return nn.Parameter(moved, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else moved
