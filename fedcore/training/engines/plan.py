"""How a model can be divided among ranks, which only its author knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import nn

Split = Literal["colwise", "rowwise", "embedding", "output"]
"""How a layer is split: see `ParallelPlan.tensor`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """What a module's method `parallel_plan()` returns. Names are those of `named_modules`.

    blocks: modules of similar size that make up most of the model; gathered, checkpointed and compiled one by one.
    tensor: pattern of names, where * stands for one part -> how tensor parallelism splits the layer: "colwise" (a
        linear layer by its outputs, of which a rank goes on with its own), "rowwise" (by its inputs, of which a rank
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
