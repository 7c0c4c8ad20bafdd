"""How a model is made ready for an engine: where it can be divided, its blocks, memory for the part that a rank keeps.

Only the author of a model knows how it can be divided among ranks; `ParallelPlan` says so. `prepare` checkpoints and
compiles blocks. It replaces their forward functions and not the modules: the names in a state stay as they are, and the
hooks that gather a sharded block's parameters stay outside, so that they are not traced and do not run again when a
block is computed again. A model can be built without memory for its weights, for a rank that keeps only a part of it.
"""

from __future__ import annotations

import copy
import functools
import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.checkpoint import checkpoint

from fedcore.errors import ConfigurationError
from fedcore.run.engine_config import EngineConfig
from fedcore.training.engines.stepping import Recipe

Split = Literal["colwise", "rowwise", "embedding", "output"]
"""How a layer is split: see `ParallelPlan.tensor`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """What a module's method `parallel_plan()` returns. Names are those of `named_modules`.

    blocks: modules of similar size that make up most of the model; gathered, checkpointed and compiled one by one.
    tensor: pattern of names, where * stands for one part -> how tensor parallelism splits the layer: "colwise" (a
        linear layer by its outputs, of which a rank uses its own next), "rowwise" (by its inputs, of which a rank
        has its own; the outputs are summed), "embedding" (by its rows), "output" (by its outputs, then gathered).
    heads: what the layers of `tensor` cannot be cut inside of, such as attention heads; the ranks must divide it.
    layers: modules that, called one after another, each with the output of the one before, are the model.
    """

    blocks: tuple[str, ...] = ()
    tensor: Mapping[str, Split] = field(default_factory=dict)
    heads: int = 0
    layers: tuple[str, ...] = ()


def plan_of(module: nn.Module) -> ParallelPlan:
    """The plan that the module gives; else, of a Sequential, its children are blocks and layers."""
    own = getattr(module, "parallel_plan", None)
    if own is not None:
        plan: ParallelPlan = own()
        return plan
    if isinstance(module, nn.Sequential):
        children = [(name, child) for name, child in module.named_children()]
        blocks = tuple(name for name, child in children if any(True for _ in child.parameters()))
        return ParallelPlan(blocks=blocks, layers=tuple(name for name, _ in children))
    return ParallelPlan()


_COMPILERS = ("c++", "g++", "clang++")


def prepare(module: nn.Module, config: EngineConfig) -> nn.Module:
    """The same module, whose blocks are checkpointed and compiled as `config` says; names stay as they are.

    Raises ConfigurationError if there are no blocks to checkpoint, or no compiler.
    """
    blocks = [module.get_submodule(name) for name in plan_of(module).blocks]
    if config.compile:
        _check_compiler()
        for part in blocks or [module]:
            part.forward = _compiled(part.forward)
    if config.checkpoint:
        if not blocks:
            raise ConfigurationError(
                f"checkpoint needs blocks, and {type(module).__name__} names none; give it a method parallel_plan()"
            )
        for block in blocks:
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    return module


def _compiled(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, compiled when it is first called.

    Not nn.Module.compile: it leaves out the modules that torch brings along, whose own frames are never traced.
    """

    def traced(*arguments: Any, **named: Any) -> Any:
        return forward(*arguments, **named)

    compiled: Callable[..., Any] = torch.compile(traced)
    return compiled


def _check_compiler() -> None:
    named = os.environ.get("CXX")
    if not any(shutil.which(name) for name in ([named] if named else _COMPILERS)):
        raise ConfigurationError(
            f"compile needs a C++ compiler, and there is no {named or ' or '.join(_COMPILERS)}; install one or name it "
            "in CXX"
        )


def made(recipe: Recipe) -> nn.Module:
    """The recipe's model; raises ConfigurationError for one without anything to train, or whose shapes are unknown."""
    module = modules_together(recipe.build())
    lazy = next((name for name, one in _tensors(module) if is_lazy(one)), None)
    if lazy is not None:
        raise ConfigurationError(
            f"{lazy} has no shape yet: a model with lazy layers (LazyLinear, ...) is run once on an example before "
            "`model` returns it, as by: with torch.no_grad(): module(torch.zeros(2, 13))",
            check="lazy-layers",
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ConfigurationError(
            f"the model ({type(module).__name__}) has no parameter to train: none has requires_grad = True"
        )
    return module


def modules_together(made: nn.Module | Mapping[str, nn.Module]) -> nn.Module:
    """What an app's `model` gives; of a dict of models one module that has them by their names."""
    if isinstance(made, nn.Module):
        return made
    if isinstance(made, Mapping) and made and all(isinstance(part, nn.Module) for part in made.values()):
        return nn.ModuleDict(made)
    raise ConfigurationError(
        f"the app's model gives a {type(made).__name__}: give a torch.nn.Module, or a dict of them by names",
        check="not-a-model",
    )


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def unplaced(recipe: Recipe) -> nn.Module:
    """A model to take parts of: without memory where a state will give it its values, real where that is not enough."""
    empty = None if recipe.keep_weights else on_meta(lambda: made(recipe))
    return made(recipe) if empty is None else empty


def on_meta(build: Callable[[], nn.Module]) -> nn.Module | None:
    """The model without memory for its weights; None if it has values that no state brings back."""
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
def move_to(module: nn.Module, device: torch.device) -> None:
    """Move parameters and buffers to `device`, in place.

    Those without memory get some, and are NaN until they are loaded, so that nobody trains without. Tensors with
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
    """Names of the parameters that have more than one, grouped by parameter."""
    groups: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def _like(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on another device, without its values if it or the device has none."""
    moved = torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.detach().to(device)
    return nn.Parameter(moved, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else moved
