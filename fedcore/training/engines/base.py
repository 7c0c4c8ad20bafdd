"""The interface of the engines, and all that they have in common.

An engine holds one model, its optimizer and the ranks that train it. Whatever the engine, a step means the same: the
gradient of the mean loss over the whole batch, clipped by its norm over the whole model, then one step of the
optimizer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from fedcore.errors import ConfigurationError
from fedcore.run.engine_config import EngineConfig
from fedcore.state import Layout, ModelState, StateSink
from fedcore.system.memory import limit_memory, release_memory
from fedcore.system.workers.step_counter import counted_steps
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
from fedcore.training.engines.own_loops import GradientAverage
from fedcore.training.engines.stepping import Recipe, Stepping, check_sync_batch_norm, one_optimizer
from fedcore.training.engines.streams import (
    StreamPlan,
    evaluation_batches,
    examples_in,
    is_stream,
    rows_to_pick,
    steps_in,
    training_batches,
)
from fedcore.training.engines.transfer import Entry, load_entries, optimizer_entries, save_entries
from fedcore.training.engines.world import World
from fedcore.training.seeds import be_deterministic, derive_seed, seeded
from fedcore.training.structures import Structure, call, map_tensors


class Engine(Stepping):
    """One model on one or more ranks. Every rank has to make the same calls in the same order.

    model: what a loop calls; for "pp" the layers of this rank only, so that a loop of your own uses `step`.
    module: the model without what the engine wrapped around it.
    replicates: whether every rank has the whole model.
    data_rank, data_size: this rank's place among those that get different examples, and their number.
    examples_trained: examples of all batches up to now, over all ranks.
    """

    def __init__(self, recipe: Recipe, config: EngineConfig, world: World) -> None:
        config.check(world.size)
        world.check(config)
        if config.memory_share:
            limit_memory(config.memory_share, world.device)
        self.recipe = recipe
        self.config = config
        self.world = world
        self.examples_trained = 0
        self._last_share = torch.zeros(())
        self.loaders = Loaders(world.device, room=room_for_data(world.device, config.memory_share))
        self.own_loops = GradientAverage(world)
        recipe.loss.check_engine(config, world.size)
        check_sync_batch_norm(recipe.sync_batch_norm, config)
        if config.deterministic:
            be_deterministic()
        self._build()
        self.reset_optimizer()

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
            sharded: each rank reads data of its own, instead of all plan the same.
        """
        if is_stream(data):
            plan = StreamPlan(batch_size=batch_size, epochs=epochs, steps=steps, seed=seed, sharded=sharded)
            plan.check(data, workers)
            return counted_steps(self._noting_shares(training_batches(self, data, plan)))
        rows = self._rows(rows_to_pick(data), batch_size, epochs, steps, seed, sharded)
        return counted_steps(self._noting_shares(self.read(data, rows, workers=workers, seed=seed)))

    def _noting_shares(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same, for your own loop: its mean over this rank's part counts for as much in that of the whole batch."""
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
            return counted_steps(self._noting_shares(evaluation_batches(self, data, batch_size, sharded=sharded)))
        own = rows_to_pick(data)
        counts = self._counts(own) if sharded else None
        rows = ordered_rows(own, batch_size, rank=self.data_rank, ranks=self.data_size, counts=counts)
        return counted_steps(self.loaders.batches(data, rows, workers=workers))

    def steps_of(self, data: TrainingData, *, batch_size: int, epochs: int, steps: int, sharded: bool = False) -> int:
        """How many steps `batches` gives; every rank has to call it where data are sharded."""
        if steps:
            return steps
        if is_stream(data):
            return steps_in(data, StreamPlan(batch_size=batch_size, epochs=epochs))
        own = rows_to_pick(data)
        examples = sum(self._counts(own)) if sharded else own
        return steps_of(examples, batch_size=batch_size, epochs=epochs, steps=steps)[1]

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
            value = loss.checked(loss.compute(self.module, batch.content), len(batch)).double()
        counts = loss.counts(self.module, batch.content) if loss.counts else torch.tensor(float(len(batch)))
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
