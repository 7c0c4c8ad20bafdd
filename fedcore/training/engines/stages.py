"""How a model is cut into the stages of a pipeline, and the orders in which these work through the micro-batches.

With p ranks, the first micro-batch reaches the last rank after p - 1 others have worked on it, and its gradient takes
as long to come back: the bubble. "gpipe" does all forward passes first, and keeps the activations of all m
micro-batches. "1f1b" begins each backward pass as early as it can: the bubble is the same, but no rank keeps the
activations of more than p micro-batches. "interleaved" gives each rank v separate runs of layers: about a v-th of the
bubble, v times as much to send, and activations of some more micro-batches than with "1f1b".
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from fedcore.errors import ConfigurationError
from fedcore.training.engines.building import move_to, outline, plan_of, tied_names


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedModel:
    """A model cut into stages, of which rank r of n has those with number r, r + n, ...

    skeleton: the model without memory for its tensors.
    stages: names of the layers of each stage, in order of execution.
    """

    skeleton: nn.Module
    stages: tuple[tuple[str, ...], ...]
    ranks: int

    def owner(self, name: str) -> int:
        """The rank that has a parameter or buffer; ConfigurationError if it is in no layer."""
        for number, layers in enumerate(self.stages):
            if any(name.startswith(f"{layer}.") for layer in layers):
                return number % self.ranks
        raise ConfigurationError(f"the parallel plan has no layer with {name}, which no rank of a pipeline would hold")

    def holders(self) -> dict[str, tuple[int, ...]]:
        """The ranks that hold each tied parameter, by each of its names."""
        return {
            name: tuple(sorted({self.owner(other) for other in names}))
            for names in tied_names(self.skeleton)
            for name in names
        }

    def own_stages(self, rank: int) -> list[int]:
        """Numbers of the stages of a rank."""
        return list(range(rank, len(self.stages), self.ranks))

    def keep(self, module: nn.Module, rank: int, device: torch.device) -> None:
        """Leave only the layers of `rank` in the model that was cut, and move them to `device`; names stay."""
        own = {layer for stage in self.own_stages(rank) for layer in self.stages[stage]}
        for layer in itertools.chain.from_iterable(self.stages):
            if layer not in own:
                path, _, name = layer.rpartition(".")
                setattr(module.get_submodule(path), name, nn.Identity())
        move_to(module, device)

    def boundaries(self, example: Tensor) -> list[Tensor]:
        """What enters each stage, and what leaves the last one, as tensors without memory.

        Args:
            example: a micro-batch.
        """
        tensors = [torch.empty_like(example, device="meta")]
        for layers in self.stages:
            x = tensors[-1]
            for layer in layers:
                x = self.skeleton.get_submodule(layer)(x)
            # What travels is contiguous, see Stage.
            tensors.append(torch.empty(x.shape, dtype=x.dtype, device="meta", requires_grad=x.requires_grad))
        return tensors


class Stage(nn.Module):
    """Some consecutive layers of a model.

    autocast: dtype for the forward pass, None for that of the weights.

    What is handed to the next stage has the dtype `sent`, so that reduced precision within the stages does not change
    what travels between them: one rank alone would not round there, either.
    """

    def __init__(self, layers: Sequence[nn.Module], sent: torch.dtype | None, autocast: torch.dtype | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self._sent = sent
        self._autocast = autocast

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, self._autocast, enabled=self._autocast is not None):
            for layer in self.layers:
                x = layer(x)
        return x if self._sent is None else x.to(self._sent).contiguous()


def split_model(module: nn.Module, ranks: int, *, runs: int = 1) -> StagedModel:
    """Where to cut a model so that the stage with the most parameters has as few as can be.

    Raises ConfigurationError for a model that does not say how to cut it, or has too few layers.

    Args:
        runs: stages of each rank.
    """
    skeleton = outline(module)
    layers = plan_of(skeleton).layers
    if not layers:
        raise ConfigurationError(
            f"a pipeline does not know how to cut {type(skeleton).__name__}: give it a method parallel_plan() that "
            "returns a ParallelPlan with `layers`, as fedcore.training.models.gpt does, or make it a Sequential; "
            "engine fsdp needs neither",
            check="pipeline-plan",
        )
    sizes = [sum(p.numel() for p in skeleton.get_submodule(layer).parameters()) for layer in layers]
    ends = _balanced(sizes, ranks * runs)
    stages = tuple(layers[start:stop] for start, stop in itertools.pairwise(ends))
    staged = StagedModel(skeleton=skeleton, stages=stages, ranks=ranks)
    for name in skeleton.state_dict():
        staged.owner(name)
    return staged


def _balanced(sizes: Sequence[int], stages: int) -> list[int]:
    """Where to cut: `stages` + 1 numbers from 0 to len(sizes), so that the largest sum between two is smallest.

    Every stage needs a parameter, or its optimizer would have nothing to do.
    """
    sums = [0, *itertools.accumulate(sizes)]

    @functools.cache
    def best(start: int, left: int) -> tuple[float, tuple[int, ...]]:
        if left == 1:
            return (sums[-1] - sums[start] or math.inf, (len(sizes),))
        smallest: tuple[float, tuple[int, ...]] = (math.inf, ())
        for stop in range(start + 1, len(sizes) - left + 2):
            size = (sums[stop] - sums[start]) or math.inf
            rest, ends = best(stop, left - 1)
            smallest = min(smallest, (max(size, rest), (stop, *ends)))
        return smallest

    largest, ends = best(0, stages) if stages <= len(sizes) else (math.inf, ())
    if largest == math.inf:
        count = sum(size > 0 for size in sizes)
        raise ConfigurationError(
            f"a pipeline of {stages} stages needs as many layers with parameters; there are {count}"
        )
    return [0, *ends]


Schedule: TypeAlias = ScheduleGPipe | Schedule1F1B | ScheduleInterleaved1F1B
ScheduleName: TypeAlias = Literal["gpipe", "1f1b", "interleaved"]


def check_micro_batches(name: ScheduleName, *, ranks: int, micro_batches: int) -> None:
    """Raise ConfigurationError for a number of micro-batches that the schedule cannot order."""
    if name == "1f1b" and micro_batches < ranks:
        raise ConfigurationError(f"1f1b needs a micro-batch for each of {ranks} ranks, not {micro_batches}")
    if name == "interleaved" and micro_batches % max(1, micro_batches // ranks):
        raise ConfigurationError(
            f"the interleaved schedule cannot order {micro_batches} micro-batches on {ranks} ranks; use a multiple"
        )


def make_schedule(
    name: ScheduleName, stages: list[PipelineStage], micro_batches: int, loss: Callable[..., Tensor] | None
) -> Schedule:
    """The schedule of one rank's stages; without a loss it only goes forward."""
    if name == "interleaved":
        return ScheduleInterleaved1F1B(list(stages), micro_batches, loss_fn=loss, scale_grads=False)
    kind = ScheduleGPipe if name == "gpipe" else Schedule1F1B
    return kind(stages[0], micro_batches, loss_fn=loss, scale_grads=False)
