"""Consecutive layers on consecutive ranks: a pipeline through which micro-batches flow.

A rank computes on one micro-batch while its neighbours are busy with others (Huang et al. 2019, "GPipe"). The orders of
work come from torch.distributed.pipelining; see `fedcore.training.engines.stages` for what they cost in idle time.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from fedcore.errors import ConfigurationError, UsageError
from fedcore.training.engines.base import Engine, state_entries
from fedcore.training.engines.batches import Batch
from fedcore.training.engines.building import prepare, tied_names, unplaced
from fedcore.training.engines.stages import (
    Schedule,
    Stage,
    StagedModel,
    check_micro_batches,
    make_schedule,
    split_model,
)
from fedcore.training.engines.transfer import Entry, optimizer_entries, parameter_of
from fedcore.training.seeds import derive_seed, seeded

_MOST_SCHEDULES = 4
"""Shapes of micro-batches whose buffers are kept: as a rule whole and last batch, in training and in evaluation."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a schedule is made for.

    rows: examples of a micro-batch.
    training: with a backward pass.
    """

    rows: int
    example: torch.Size
    dtype: torch.dtype
    training: bool


class PipelineEngine(Engine):
    """`model` and `module` are the whole model of which only this rank's layers are left; use `step` and `outputs`.

    All ranks read the same examples: the first uses the inputs, the last the targets. Layers that look at other
    examples of the batch (batch norm) see one micro-batch at a time, and the copies that fill it up to full size.
    """

    _staged: StagedModel

    def _build(self) -> None:
        if "loss_kwargs" not in inspect.signature(PipelineScheduleSingle.step).parameters:
            raise ConfigurationError(
                f"engine pp needs torch 2.13 or newer, and this is torch {torch.__version__}; train with engine fsdp",
                check="torch-too-old",
            )
        runs = 2 if self.config.schedule == "interleaved" else 1
        check_micro_batches(self.config.schedule, ranks=self.world.size, micro_batches=self.micro_batches)
        self.module = self.model = unplaced(self.recipe)
        self._staged = split_model(self.module, self.world.size, runs=runs)
        self._staged.keep(self.module, self.world.rank, self.device)
        prepare(self.module, self.config)
        self._schedules: dict[_Shape, Schedule] = {}
        self._shared = self._groups()

    @property
    def data_rank(self) -> int:
        return 0

    @property
    def data_size(self) -> int:
        return 1

    def reset_optimizer(self) -> None:
        """A new optimizer without any history; where none of this rank's layers is trained, one without parameters."""
        try:
            super().reset_optimizer()
        except ValueError:  # which torch's optimizers raise for an empty list
            self.optimizer = self.recipe.optimizer(self._staged.skeleton)
            for group in self.optimizer.param_groups:
                group["params"] = []

    @property
    def micro_batches(self) -> int:
        """How many micro-batches a batch is cut into."""
        return self.config.micro_batches or 2 * self.world.size

    def total(self, values: Tensor) -> Tensor:
        """The sum over all ranks, of which only the last has losses; every rank has to call it."""
        return self.world.sum(values)

    def seeded(self, seed: int) -> AbstractContextManager[None]:
        """As `Engine.seeded`; ranks draw different numbers, since they have different layers."""
        return seeded(derive_seed("stage", seed, self.world.rank))

    # --- a step -------------------------------------------------------------------------------------------------

    def backward(self, batch: Batch | Tensor) -> Tensor:
        """Add the gradient of the batch's mean loss to the parameters'; returns what `step` does."""
        if isinstance(batch, Tensor):
            return super().backward(batch)
        self.examples_trained += batch.total
        before = {parameter: parameter.grad for parameter in self._shared}
        for parameter in before:
            parameter.grad = None
        losses: list[Tensor] = []
        self._run(self._filled(self._weighed(batch)), training=True, losses=losses)
        for parameter, group in self._shared.items():
            self._add_up(parameter, group, before[parameter])
        if not losses:
            return torch.zeros((), device=self.device)
        return torch.stack(losses).sum().detach().float() * batch.total

    @torch.no_grad()
    def outputs(self, batch: Batch) -> Tensor | None:
        """The model's output [n, ...] for a batch on the last rank, None on the others."""
        output = self._run(self._filled(batch), training=False)
        return None if output is None else output[: len(batch)].float()

    def _run(self, batch: Batch, *, training: bool, losses: list[Tensor] | None = None) -> Tensor | None:
        """Send a batch of full micro-batches through the pipeline; its output on the last rank, in an evaluation."""
        shape = _Shape(len(batch) // self.micro_batches, batch.x.shape[1:], batch.x.dtype, training)
        schedule = self._schedule(shape, batch.x)
        inputs = (batch.x,) if self.world.rank == 0 else ()
        options: dict[str, Any] = {}
        if training:
            # The schedule cuts only one tensor of targets; row numbers stand for targets and weights.
            rows = torch.arange(len(batch), device=self.device)
            loss = {"y": batch.y, "weights": batch.weights, "total": batch.total}
            options = {"target": rows, "losses": losses, "return_outputs": False, "loss_kwargs": loss}
        output: Tensor | None = schedule.step(*inputs, **options)
        return output

    def _loss(self, output: Tensor, rows: Tensor, *, y: Tensor, weights: Tensor, total: int) -> Tensor:
        """A micro-batch's share of the mean loss of the batch."""
        with self._precision():
            losses = self.recipe.loss(output, y[rows])
        return (losses * weights[rows]).sum() / total

    def _filled(self, batch: Batch) -> Batch:
        """The batch with copies of its first example, of weight 0, that make all micro-batches equally large."""
        if not isinstance(batch.x, Tensor) or not isinstance(batch.y, Tensor):
            raise UsageError(
                "engine pp sends one tensor of inputs through its stages, and this dataset gives several (tuples or "
                "dicts); use another engine",
                check="several-tensors",
            )
        count = len(batch)
        missing = math.ceil(count / self.micro_batches) * self.micro_batches - count
        weights = torch.ones(count, device=self.device) if batch.weights is None else batch.weights
        if not missing:
            return replace(batch, weights=weights)
        rows = nn.functional.pad(torch.arange(count, device=batch.x.device), (0, missing))
        return Batch(batch.x[rows], batch.y[rows], batch.total, nn.functional.pad(weights, (0, missing)))

    # --- the pipeline -------------------------------------------------------------------------------------------

    def _schedule(self, shape: _Shape, x: Tensor) -> Schedule:
        """The schedule for micro-batches of a shape, with its buffers; all ranks come to need a new one together."""
        if shape not in self._schedules:
            if len(self._schedules) >= _MOST_SCHEDULES:
                del self._schedules[next(iter(self._schedules))]
            self._schedules[shape] = make_schedule(
                self.config.schedule,
                self._stages(x[: shape.rows], training=shape.training),
                self.micro_batches,
                self._loss if shape.training else None,
            )
        return self._schedules[shape]

    def _stages(self, example: Tensor, *, training: bool) -> list[PipelineStage]:
        """This rank's stages for micro-batches like `example`."""
        with torch.set_grad_enabled(training):
            boundaries = self._staged.boundaries(example)
        autocast = torch.bfloat16 if self.config.precision == "bf16" else None
        count = len(self._staged.stages)
        stages = []
        for number in self._staged.own_stages(self.world.rank):
            layers = [self.module.get_submodule(layer) for layer in self._staged.stages[number]]
            sent = boundaries[number + 1].dtype if number + 1 < count else None
            stages.append(
                PipelineStage(
                    Stage(layers, sent, autocast),
                    number,
                    count,
                    self.device,
                    input_args=boundaries[number],
                    output_args=boundaries[number + 1],
                )
            )
        return stages

    # --- tied weights -------------------------------------------------------------------------------------------

    def _groups(self) -> dict[nn.Parameter, dist.ProcessGroup]:
        """This rank's parameters of which another rank holds a copy, with the group of the ranks that do."""
        holders = self._staged.holders()
        # Every rank takes part in making every group.
        groups = {ranks: dist.new_group(list(ranks)) for ranks in sorted(set(holders.values())) if len(ranks) > 1}
        return {
            parameter: groups[holders[name]]
            for name, parameter in self.module.named_parameters()
            if holders.get(name) in groups
        }

    def _add_up(self, parameter: nn.Parameter, group: dist.ProcessGroup, before: Tensor | None) -> None:
        """Make the gradient of a tied weight the sum over the ranks that use it."""
        if not parameter.requires_grad:
            return
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        dist.all_reduce(gradient, group=group)
        parameter.grad = gradient if before is None else gradient.add_(before)

    def _copies(self, parameter: nn.Parameter) -> int:
        group = self._shared.get(parameter)
        return 1 if group is None else dist.get_world_size(group)

    # --- state --------------------------------------------------------------------------------------------------

    def entries(self, *, optimizer: bool = False, only: Collection[str] | None = None) -> list[Entry]:
        """As `Engine.entries`, of the whole model on every rank; what another rank holds has no tensor."""
        own = {entry.spec.name: entry.tensor for entry in state_entries(self.module)}
        all_entries = state_entries(self._staged.skeleton)
        owners = {entry.spec.name: self._staged.owner(entry.spec.name) for entry in all_entries}
        if optimizer:
            # Every rank that holds a tied weight keeps a history of it, under the weight's first name.
            names = {name: names[0] for names in tied_names(self._staged.skeleton) for name in names}
            parameters = [(names.get(name, name), p) for name, p in self.module.named_parameters()]
            own |= {entry.spec.name: entry.tensor for entry in optimizer_entries(self.optimizer, parameters)}
            history = optimizer_entries(
                self.recipe.optimizer(self._staged.skeleton), self._staged.skeleton.named_parameters()
            )
            owners |= {entry.spec.name: owners[parameter_of(entry.spec.name)] for entry in history}
            all_entries += history
        return [
            replace(entry, tensor=own.get(entry.spec.name), owner=owners[entry.spec.name])
            for entry in all_entries
            if only is None or entry.spec.name in only
        ]

    def _buffers(self) -> set[str]:
        return {name for name, _ in self._staged.skeleton.named_buffers(remove_duplicate=False)}

    def close(self) -> None:
        """Release what must not outlive the process group."""
        self._schedules.clear()
        self._shared.clear()
        super().close()
