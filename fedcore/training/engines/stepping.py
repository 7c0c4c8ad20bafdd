"""The steps of an engine, and what they do for optimizers, gradients and losses that are not of the usual kind."""

from __future__ import annotations

import contextlib
import functools
import math
from abc import ABC
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedcore.errors import ConfigurationError
from fedcore.run.engine_config import EngineConfig
from fedcore.system.workers.step_counter import STEPS
from fedcore.training.dtensors import is_dtensor, local
from fedcore.training.engines.batches import Batch
from fedcore.training.engines.own_loops import GradientAverage, needs_closure, prepare
from fedcore.training.engines.world import World
from fedcore.training.losses import Loss, cross_entropy
from fedcore.training.rules import LocalRule, WeighingLayer, weighing_layer
from fedcore.training.structures import call

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]
"""Makes an optimizer for a model's parameters, without any history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What to train.

    build: makes the model, whose weights come with `Engine.load`; until then they mean nothing.
    keep_weights: those that `build` gives, the same on every rank, do mean something, as where only an adapter's are
        loaded; a sharding engine then needs memory for the whole model when it starts.
    optimizer: makes one for a model's parameters.
    sync_batch_norm: batch normalisation goes by the whole batch and not by each rank's share.
    """

    build: Callable[[], nn.Module]
    optimizer: MakeOptimizer
    loss: Loss = cross_entropy
    keep_weights: bool = False
    sync_batch_norm: bool = False


class Stepping(ABC):
    """Steps of one model on one or more ranks: the part of `Engine` that trains."""

    model: nn.Module
    module: nn.Module
    optimizer: torch.optim.Optimizer
    replicates: ClassVar[bool] = False
    recipe: Recipe
    config: EngineConfig
    world: World
    own_loops: GradientAverage
    examples_trained: int
    _share_of: tuple[float, torch.dtype, torch.device, type] | None = None
    _last_share: Tensor

    @property
    def device(self) -> torch.device:
        return self.world.device

    @property
    def data_rank(self) -> int:
        return self.world.rank

    @property
    def data_size(self) -> int:
        return self.world.size

    def total(self, values: Tensor) -> Tensor:
        """The sum over the ranks that have different examples; every rank has to call it."""
        return self.world.sum(values) / (self.world.size // self.data_size)

    def step(self, batch: Batch, *, clip_norm: float = 0.0, rule: LocalRule | None = None) -> Tensor:
        """One optimizer step on a batch.

        Returns this rank's part of the sum of the examples' losses before the step, a float32 scalar. An optimizer that
        computes the loss again in its step (LBFGS) does so on the same batch; raises ConfigurationError if it cannot.

        Args:
            clip_norm: bound on the L2 norm of the gradient, 0 for none.
            rule: changes the gradient first.
        """
        if needs_closure(type(self.optimizer)):
            return step_by_closure(self, batch, clip_norm=clip_norm, rule=rule)
        self._drop_gradients()
        loss = self.backward(batch)
        if rule is not None:
            rule.correct(self.parameters(), self.optimizer)
        if clip_norm:
            self.clip(clip_norm)
        self.optimizer.step()
        return loss

    def release(self) -> None:
        """Give back the memory of gradients and of the optimizer's history, which the next training begins without."""
        self._drop_gradients()
        self.optimizer.state.clear()

    def _drop_gradients(self) -> None:
        """What `zero_grad` of an optimizer does, which for a small model is a hundredth of a step."""
        if type(self.optimizer).zero_grad is not torch.optim.Optimizer.zero_grad:
            self.optimizer.zero_grad()
            return
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def backward(self, batch: Batch | Tensor) -> Tensor:
        """Add the gradient of the batch's mean loss to the parameters'; returns what `step` does.

        Of a loss [] that a loop of your own computed it is `loss.backward()`, after `prepare`.
        """
        if isinstance(batch, Tensor):
            STEPS.note_part()
            batch.backward()  # type: ignore[no-untyped-call]
            return batch.detach()
        self.examples_trained += batch.total
        count, losses = self.config.micro_batches or 1, []
        weight = self._weight(batch)
        with self.own_loops.set_aside():
            for number, micro_batch in enumerate(self._weighed(self._by_targets(batch)).split(count), start=1):
                STEPS.note_part()
                with self._synchronised(number == count):
                    loss = self._loss_sum(micro_batch, weight)
                    # Engines average gradients over their data-parallel ranks; the batch's mean is a sum over all.
                    loss.backward(self._share(loss, self.data_size / micro_batch.total))  # type: ignore[no-untyped-call]
                losses.append(loss.detach())
        return functools.reduce(torch.add, losses)

    def _weight(self, batch: Batch) -> float:
        """What one of those that the model's own loss is the mean over counts for, in examples."""
        counts = self.recipe.loss.counts if self.recipe.loss.of == "model" else None
        if counts is None:
            return 1.0
        own = counts(self.module, batch.content).detach().double().to(self.device)
        total = float(self.total(own if batch.weights is None else torch.zeros_like(own)))
        return batch.total / max(total, 1.0)

    def _weighed(self, batch: Batch) -> Batch:
        """The batch, each example weighed by the model's layer for it; raises ConfigurationError if it cannot be."""
        layer = self._weighing
        if layer is None or not isinstance(batch.y, Tensor):
            return batch
        weights = layer.example_weights(batch.y)
        if weights is None:
            return batch
        self._check_weighing()
        return replace(batch, weights=weights if batch.weights is None else weights * batch.weights)

    @functools.cached_property
    def _weighing(self) -> WeighingLayer | None:
        return weighing_layer(self.module)

    def _check_weighing(self) -> None:
        loss = self.recipe.loss
        if loss.over != "example" or loss.of == "model" or self.config.engine == "pp":
            raise ConfigurationError(
                f"class weights need a loss of each example and another engine than pp; this is {loss.name} over "
                f'{loss.over} with engine {self.config.engine}. Set class-weight = "none"',
                check="class-weights",
            )

    def _by_targets(self, batch: Batch) -> Batch:
        """The batch with each example weighed by its targets, if the loss is a mean over these.

        The weights of all ranks' examples add up to their number, as with any other loss.
        """
        loss = self.recipe.loss
        if loss.over != "target" or loss.counts is None:
            return batch
        examples = torch.ones(len(batch), device=self.device) if batch.weights is None else batch.weights
        targets = loss.counts(batch.y).to(examples) * examples
        number, total = self.total(torch.stack([examples.sum(), targets.sum()]))
        return replace(batch, weights=targets * (number / total.clamp(min=1)))

    def _share(self, loss: Tensor, share: float) -> Tensor:
        """`share` as a gradient of `loss`; steps of one size have the same, unless somebody wrote into it."""
        kind = share, loss.dtype, loss.device, type(loss)
        if self._share_of != kind or self._last_share._version:  # noqa: SLF001 - torch's count of writes
            self._share_of, self._last_share = kind, torch.full_like(loss, share)
        return self._last_share

    def clip(self, max_norm: float) -> Tensor:
        """Scale the gradient of the whole model to an L2 norm of at most `max_norm`; returns the norm before."""
        norm = self.world.sum(self._squared_norm()).sqrt()
        scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        gradients = [values_of(p) for p in self.parameters() if p.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, scale.to(gradients[0].device))
        return norm

    def prepare(self, *objects: Any) -> Any:
        """For a loop of your own: the same objects, one or a tuple, ready to be used on every rank.

        From then on each backward pass gives the parameters the mean of the ranks' gradients, whatever parts of the
        model it went through; losses are means over this rank's part of the batch. On one rank nothing changes. Models
        that are no part of the engine's begin with rank 0's values, and are not handed over. Raises ConfigurationError
        for engines that have the model in parts, and for objects of another kind.

        Args:
            objects: models, or parts of one; optimizers, schedulers, and DataLoaders, whose batches are then this
                rank's part, on its device.
        """
        prepared = prepare(self, objects)
        return prepared[0] if len(prepared) == 1 else prepared

    def average_gradients(self) -> None:  # noqa: B027 - nothing to do where nothing is copied
        """Give all ranks the mean of their gradients: for a loop that prepared nothing, before each step."""

    def parameters(self) -> list[nn.Parameter]:
        """The parameters that are trained; on a sharding engine, DTensors of which this rank holds a part."""
        return [p for p in self.module.parameters() if p.requires_grad]

    def snapshot(self) -> list[Tensor]:
        """A copy of this rank's part of the parameters, for `Proximal`."""
        return [local(p.detach()).clone() for p in self.parameters()]

    def _loss_sum(self, batch: Batch, weight: float = 1.0) -> Tensor:
        if self.config.precision != "bf16":
            return self._objective(batch, weight)
        with self._precision():
            return self._objective(batch, weight)

    def _objective(self, batch: Batch, weight: float) -> Tensor:
        """The sum of the examples' losses []; an engine may have to compute it within what it wrapped around."""
        return self._sum_of(self.model, batch, weight)

    def _sum_of(self, model: nn.Module, batch: Batch, weight: float) -> Tensor:
        loss = self.recipe.loss
        if loss.of == "model":
            return sum_of_model(loss, model, batch, weight, divided=self._divides)
        batch.check()
        output = call(model, batch.x)
        if batch.weights is None:
            return loss.sum(output, batch.y)
        return (loss(output, batch.y) * batch.weights).sum()

    @property
    def _divides(self) -> bool:
        """Whether what is worked on at once may be a part of a batch."""
        return self.data_size > 1 or self.config.micro_batches > 1

    def _precision(self) -> AbstractContextManager[object]:
        if self.config.precision == "bf16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return contextlib.nullcontext()

    def _synchronised(self, last: bool) -> AbstractContextManager[object]:
        """Around one micro-batch; before the last one nothing has to be sent."""
        return contextlib.nullcontext()

    def norm(self, tensors: Sequence[Tensor]) -> Tensor:
        """The L2 norm of tensors that are sharded as `parameters` are, over all ranks; every rank has to call it."""
        pairs = zip(tensors, self.parameters(), strict=True)
        return self.world.sum(self._squares([(tensor, self._copies(p)) for tensor, p in pairs])).sqrt()

    def _squared_norm(self) -> Tensor:
        """This rank's part of the squared norm of the gradient, such that the sum over all ranks is the whole."""
        return self._squares([(values_of(p), self._copies(p)) for p in self.parameters() if p.grad is not None])

    def _squares(self, tensors: list[tuple[Tensor, int]]) -> Tensor:
        """The same of tensors, each with how many ranks hold what this rank holds of it."""
        if not tensors:
            return torch.zeros((), device=self.device)
        wide = functools.reduce(torch.promote_types, (tensor.dtype for tensor, _ in tensors), torch.float32)
        norms = torch._foreach_norm([tensor for tensor, _ in tensors], dtype=wide)  # noqa: SLF001
        squares = torch.stack(norms).to(self.device).float().square()
        copies = [number for _, number in tensors]
        if len(set(copies)) == 1:
            # A number, and not a tensor: a copy to a GPU in every step would make the processor wait for all before it.
            return (squares / copies[0]).sum()
        return (squares / torch.tensor(copies, dtype=torch.float32, device=self.device)).sum()

    def _copies(self, parameter: nn.Parameter) -> int:
        """How many ranks hold the same elements of a parameter that this rank holds."""
        if not is_dtensor(parameter):
            return self.world.size
        sizes = zip(parameter.device_mesh.shape, parameter.placements, strict=True)
        return self.world.size // math.prod(size for size, placement in sizes if placement.is_shard())


def one_optimizer(made: Any) -> torch.optim.Optimizer:
    """What an app's `optimizer` made, if it is an optimizer; raises ConfigurationError."""
    if isinstance(made, torch.optim.Optimizer):
        return made
    raise ConfigurationError(
        f"the app's optimizer gives a {type(made).__name__}, and an engine steps with one torch.optim.Optimizer; "
        "several are for a loop of your own, after engine.prepare(model, optimizer, other_optimizer)",
        check="not-an-optimizer",
    )


def check_sync_batch_norm(requested: bool, config: EngineConfig) -> None:
    """Raise ConfigurationError for an engine whose ranks cannot normalise over the whole batch together."""
    if requested and config.engine not in ("single", "ddp", "tp"):
        raise ConfigurationError(
            f"sync-batch-norm is for engines ddp, single and tp, not {config.engine}: use one of them, or group "
            "normalisation",
            check="sync-batch-norm",
        )


def step_by_closure(engine: Stepping, batch: Batch, *, clip_norm: float, rule: LocalRule | None) -> Tensor:
    """A step of an optimizer that computes the loss several times (LBFGS); returns what `Engine.step` does.

    Raises ConfigurationError for an engine that has the model in parts, and for a rule: the optimizer goes by the loss,
    which a rule does not change.
    """
    name = type(engine.optimizer).__name__
    if not engine.replicates:
        raise ConfigurationError(
            f"{name} looks at all parameters together, and engine {engine.config.engine} has them in parts: use engine "
            "single or ddp, or another optimizer",
            check="closure-engine",
        )
    if rule is not None:
        raise ConfigurationError(
            f"{name} goes by the loss, and the strategy changes the gradient alone: use another optimizer, or a "
            "strategy that leaves the local steps as they are (fedavg)",
            check="closure-rule",
        )
    losses: list[Tensor] = []
    before = engine.examples_trained

    def closure() -> Tensor:
        engine.optimizer.zero_grad()
        losses.append(engine.backward(batch))
        if clip_norm:
            engine.clip(clip_norm)
        return engine.total(losses[-1].clone()) / batch.total

    engine.optimizer.step(closure)  # type: ignore[arg-type]
    engine.examples_trained = before + batch.total
    return losses[0]


def values_of(parameter: nn.Parameter) -> Tensor:
    """The gradient's elements that this rank holds, sharing their memory; of a sparse one those that are there."""
    assert parameter.grad is not None  # noqa: S101 - the caller looked
    if parameter.grad.is_sparse:
        parameter.grad = parameter.grad.coalesce()
        return parameter.grad._values()  # noqa: SLF001 - torch's: `values` gives a copy to a gradient
    return local(parameter.grad)


def sum_of_model(loss: Loss, model: nn.Module, batch: Batch, weight: float, *, divided: bool) -> Tensor:
    """The sum [] over a batch's examples of a loss of (model, batch).

    Args:
        weight: in examples, of each of those that the loss is the mean over.
        divided: whether this may be a part of a batch.
    """
    value = loss.checked(loss.compute(model, batch.content), len(batch), divided=divided and loss.over == "example")
    if value.dim():
        return (value if batch.weights is None else value * batch.weights).sum()
    if batch.weights is not None and not bool(batch.weights.any()):
        return value * 0.0
    if loss.counts is None:
        return value * float(len(batch))
    return value * (loss.counts(model, batch.content).detach().to(value.dtype) * weight)
