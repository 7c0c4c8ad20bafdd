"""The interface of the engines, and all that they have in common.

An engine holds one model, its optimizer and the ranks that train it. Whatever the engine, a step means the same: the
gradient of the mean loss over the whole batch, clipped by its norm over the whole model, then one step of the
optimizer.
"""

from __future__ import annotations

import contextlib
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedcore.errors import ConfigurationError
from fedcore.run.engine_config import EngineConfig
from fedcore.state import Layout, ModelState, StateSink
from fedcore.system.memory import limit_memory, release_memory
from fedcore.training.dtensors import is_dtensor, local
from fedcore.training.eager import load_no_compiler
from fedcore.training.engines.batches import (
    Batch,
    Loaders,
    Rows,
    TrainingData,
    ordered_rows,
    own_rows,
    room_for_data,
    shared_rows,
    steps_of,
)
from fedcore.training.engines.copies import check_copies
from fedcore.training.engines.own_loops import GradientAverage, needs_closure
from fedcore.training.engines.own_loops import prepare as prepare_objects
from fedcore.training.engines.stepping import (
    check_sync_batch_norm,
    one_optimizer,
    step_by_closure,
    sum_of_model,
    values_of,
)
from fedcore.training.engines.streams import (
    Reading,
    evaluation_batches,
    examples_in,
    is_stream,
    rows_to_pick,
    steps_in,
    training_batches,
)
from fedcore.training.engines.transfer import Entry, load_entries, optimizer_entries, save_entries
from fedcore.training.engines.world import World
from fedcore.training.losses import Loss, cross_entropy
from fedcore.training.rules import LocalRule
from fedcore.training.seeds import be_deterministic, derive_seed, seeded
from fedcore.training.structures import Structure, call, map_tensors

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


class Engine(ABC):
    """One model on one or more ranks. Every rank has to make the same calls in the same order.

    model: what a loop calls; for "pp" the layers of this rank only, so that a loop of your own uses `step`.
    module: the model without what the engine wrapped around it.
    replicates: whether every rank has the whole model.
    data_rank, data_size: this rank's place among those that get different examples, and their number.
    examples_trained: examples of all batches up to now, over all ranks.
    """

    model: nn.Module
    module: nn.Module
    optimizer: torch.optim.Optimizer
    replicates: ClassVar[bool] = False

    def __init__(self, recipe: Recipe, config: EngineConfig, world: World) -> None:
        config.check(world.size)
        world.check(config)
        if config.memory_share:
            limit_memory(config.memory_share, world.device)
        self.recipe = recipe
        self.config = config
        self.world = world
        self.examples_trained = 0
        self._share_of: tuple[float, torch.dtype, torch.device, type] | None = None
        self._last_share = torch.zeros(())
        self.loaders = Loaders(world.device, room=room_for_data(world.device, config.memory_share))
        self.own_loops = GradientAverage(world)
        recipe.loss.check_engine(config, world.size)
        check_sync_batch_norm(recipe.sync_batch_norm, config)
        if config.deterministic:
            be_deterministic()
        self._build()
        self.reset_optimizer()

    @property
    def device(self) -> torch.device:
        return self.world.device

    @property
    def data_rank(self) -> int:
        return self.world.rank

    @property
    def data_size(self) -> int:
        return self.world.size

    @abstractmethod
    def _build(self) -> None:
        """Make `model` and `module` on this rank's device."""

    def reset_optimizer(self) -> None:
        """A new optimizer without any history."""
        load_no_compiler()
        self.optimizer = one_optimizer(self.recipe.optimizer(self.module))

    def seeded(self, seed: int) -> AbstractContextManager[None]:
        """Around the training of one round: what the model draws, as for dropout, is then a function of `seed`.

        Ranks that get different examples draw different numbers.
        """
        return seeded(seed if self.data_size == 1 else derive_seed("rank", seed, self.data_rank))

    # --- a step -------------------------------------------------------------------------------------------------

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
            batch.backward()  # type: ignore[no-untyped-call]
            return batch.detach()
        self.examples_trained += batch.total
        count, losses = self.config.micro_batches or 1, []
        weight = self._weight(batch)
        with self.own_loops.set_aside():
            for number, micro_batch in enumerate(self._by_targets(batch).split(count), start=1):
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
        own = counts(self.module, batch.whole).detach().double().to(self.device)
        total = float(self.total(own if batch.weights is None else torch.zeros_like(own)))
        return batch.total / max(total, 1.0)

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
        prepared = prepare_objects(self, objects)
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

    # --- data ---------------------------------------------------------------------------------------------------

    def batches(
        self,
        data: TrainingData,
        *,
        batch_size: int,
        seed: int,
        epochs: int = 0,
        steps: int = 0,
        sharded: bool = False,
        workers: int = 0,
    ) -> Iterator[Batch]:
        """This rank's share of each batch, in an order that `seed` alone decides.

        Raises ConfigurationError for settings that mean nothing, on all ranks alike.

        Args:
            data: arrays, or a map-style dataset that `workers` processes read; or a stream, an iterable of examples or
                a DataLoader.
            batch_size: over all ranks; 0 is one full batch. Of a stream 0 says that its items are batches.
            epochs, steps: exactly one is positive.
            sharded: each rank reads data of its own, instead of all reading the same.
        """
        if is_stream(data):
            reading = Reading(batch_size=batch_size, epochs=epochs, steps=steps, seed=seed, sharded=sharded)
            reading.check(data, workers)
            return self._noting_shares(training_batches(self, data, reading))
        rows = self._rows(rows_to_pick(data), batch_size, epochs, steps, seed, sharded)
        return self._noting_shares(self.read(data, rows, workers=workers, seed=seed))

    def _noting_shares(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same; a loop of one's own has a part of each, and its mean counts for as much in that of the batch."""
        return batches if self.data_size == 1 else self.own_loops.sharing(batches, self.data_size)

    def read(self, data: TrainingData, rows: Iterator[Rows], *, workers: int = 0, seed: int = 0) -> Iterator[Batch]:
        """The batches with the given rows of `data`, for an order that is not one of `batches`."""
        return self.loaders.batches(data, rows, workers=workers, seed=seed)

    def passes(
        self, data: TrainingData, *, batch_size: int, sharded: bool = False, workers: int = 0
    ) -> Iterator[Batch]:
        """Every example once and in order, for an evaluation.

        A rank whose share is shorter gets examples of weight 0 instead.

        Args:
            batch_size: of one rank.
        """
        if is_stream(data):
            return self._noting_shares(evaluation_batches(self, data, batch_size, sharded=sharded))
        own = rows_to_pick(data)
        counts = self._counts(own) if sharded else None
        rows = ordered_rows(own, batch_size, rank=self.data_rank, ranks=self.data_size, counts=counts)
        return self.loaders.batches(data, rows, workers=workers)

    def steps_of(self, data: TrainingData, *, batch_size: int, epochs: int, steps: int, sharded: bool = False) -> int:
        """How many steps `batches` gives; every rank has to call it where data are sharded."""
        if steps:
            return steps
        if is_stream(data):
            return steps_in(data, Reading(batch_size=batch_size, epochs=epochs))
        own = rows_to_pick(data)
        examples = sum(self._counts(own)) if sharded else own
        return steps_of(examples, batch_size=batch_size, epochs=epochs, steps=steps)[1]

    def total(self, values: Tensor) -> Tensor:
        """The sum over the ranks that have different examples; every rank has to call it."""
        return self.world.sum(values) / (self.world.size // self.data_size)

    def examples(self, data: TrainingData, *, sharded: bool = False) -> int | None:
        """Number of examples over all ranks; None for a stream that does not say."""
        own = examples_in(data)
        return sum(self._counts(own)) if sharded and own is not None else own

    def _rows(self, own: int, batch_size: int, epochs: int, steps: int, seed: int, sharded: bool) -> Iterator[Rows]:
        counts = self._counts(own) if sharded else [own]
        if not all(counts):
            raise ConfigurationError("a rank has no examples; each needs at least one where data are sharded")
        size, steps = steps_of(sum(counts), batch_size=batch_size, epochs=epochs, steps=steps)
        if sharded:
            seed = derive_seed("order of a shard", seed, self.data_rank)
            return own_rows(counts, size, steps, seed=seed, rank=self.data_rank)
        return shared_rows(own, size, steps, seed=seed, rank=self.data_rank, ranks=self.data_size)

    def _counts(self, own: int) -> list[int]:
        """How many examples each data-parallel rank has of its own."""
        if self.data_size == 1:
            return [own]
        counts = torch.zeros(self.data_size, dtype=torch.int64, device=self.device)
        counts[self.data_rank] = own
        # Ranks that share their data say the same thing several times.
        return [count * self.data_size // self.world.size for count in self.world.sum(counts).tolist()]

    # --- evaluation ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def outputs(self, batch: Batch) -> Structure | None:
        """The model's output [n, ...] for a batch; None on a rank of a pipeline that does not have it."""
        if self.recipe.loss.of == "output":
            batch.check()
        with self._precision():
            output = call(self.module, batch.x)
        return output.float() if isinstance(output, Tensor) else map_tensors(_widened, output, other=lambda it: it)

    @torch.no_grad()
    def model_losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """How many examples' losses there are, float64 [], and their sum, of a loss of (model, batch)."""
        loss = self.recipe.loss
        with self._precision():
            value = loss.checked(loss.compute(self.module, batch.whole), len(batch)).double()
        counts = loss.counts(self.module, batch.whole) if loss.counts else torch.tensor(float(len(batch)))
        number = counts.double().to(value.device)
        return number, value * number if value.dim() == 0 else value.sum()

    def together(self, rows: Tensor) -> Tensor:
        """The rows of all ranks that have different examples, in their order: [n, ...] -> [sum of n, ...].

        Args:
            rows: as many as this rank has, maybe none; every rank has to call it.
        """
        if self.data_size == 1:
            return rows
        counts = self._counts(len(rows))
        start = sum(counts[: self.data_rank])
        # Whole numbers keep their value in float64, which the sum over copies is then divided in.
        rows_of_all = torch.zeros((sum(counts), *rows.shape[1:]), dtype=torch.float64, device=self.device)
        rows_of_all[start : start + len(rows)] = rows
        return self.total(rows_of_all).to(rows.dtype)

    # --- state --------------------------------------------------------------------------------------------------

    def load(self, state: ModelState | None, *, optimizer: bool = False, only: Collection[str] | None = None) -> None:
        """Set parameters and buffers to those of a state, which a rank other than 0 need not have.

        Raises EncodingError, on every rank, where names, dtypes or shapes differ from the model's.

        Args:
            optimizer: the state has the optimizer's tensors, too.
            only: names that it has, by default all.
        """
        load_entries(self.entries(optimizer=optimizer, only=only), state, self.world)

    def save(self, sink: StateSink | None, *, optimizer: bool = False, only: Collection[str] | None = None) -> None:
        """Write parameters and buffers, and what the optimizer keeps of its history, tensor by tensor.

        Rank 0 gives the sink. Floating point buffers, such as running means, are averaged over the ranks first: each
        rank has seen its own share of the examples. Other buffers are rank 0's. Raises AppError, on every rank, where
        ranks hold copies of anything else that are not alike (`copies`).
        """
        self._average_buffers()
        entries, buffers = self.entries(optimizer=optimizer, only=only), self._buffers()
        copies = [it for it in entries if it.spec.name not in buffers]
        check_copies([*copies, *self.own_loops.entries()], self.world, rounds=self._copies_round)
        save_entries(entries, sink, self.world)

    def _buffers(self) -> set[str]:
        """Names of the buffers of the whole model."""
        return {name for name, _ in self.module.named_buffers(remove_duplicate=False)}

    @property
    def _copies_round(self) -> bool:
        """Whether copies are computed apart, on devices that round as it comes, and not from one gradient."""
        return False

    def layout(self, *, optimizer: bool = False, only: Collection[str] | None = None) -> Layout:
        """Names, dtypes and whole shapes of what `save` writes."""
        return Layout(specs=tuple(entry.spec for entry in self.entries(optimizer=optimizer, only=only)))

    def entries(self, *, optimizer: bool = False, only: Collection[str] | None = None) -> list[Entry]:
        """The tensors of the model's state, in the order of its state_dict, then the optimizer's.

        A tensor with two names has two entries, as in state_dict. The optimizer's are called
        `optimizer.<what>.<parameter>`.
        """
        entries = state_entries(self.module)
        if optimizer:
            entries += optimizer_entries(self.optimizer, list(self.module.named_parameters()))
        return [entry for entry in entries if only is None or entry.spec.name in only]

    def free(self) -> None:
        """Drop gradients and what is cached on the device, after a step that found no memory."""
        self.optimizer.zero_grad(set_to_none=True)
        release_memory()

    def close(self) -> None:
        """Release what must not outlive the process group."""
        self.loaders.close()

    def _average_buffers(self) -> None:
        if self.data_size == 1:
            return
        state = self.module.state_dict(keep_vars=True)
        for name, buffer in self.module.named_buffers():
            if name in state and buffer.is_floating_point():
                self.world.sum(buffer).div_(self.world.size)


def state_entries(module: nn.Module) -> list[Entry]:
    """The tensors of a module's state_dict.

    Running variances are not negative: the mean of the clients' is rounded, and where one feature's variance is far
    above another's the small one may come out below zero, whose root is nan.
    """
    return [
        Entry.of(name, tensor, nonnegative=name.rpartition(".")[2] == "running_var")
        for name, tensor in module.state_dict(keep_vars=True).items()
    ]


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor
