"""A user's own loop over several ranks: gradients averaged at the end of each backward pass, whatever made them.

DistributedDataParallel averages what comes through its own forward pass. A loop that calls parts of the model (the two
halves of a GAN), or further models, has backward passes of other kinds. `prepare` puts a hook on each parameter; the
first that fires in a backward pass has the engine average, once it is over, all gradients that this pass touched.

Averaging is a projection: gradients that are the same everywhere stay as they are, so that passes may add up.
"""

from __future__ import annotations

import contextlib
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fedcore.errors import ConfigurationError
from fedcore.run.engine_config import EngineConfig
from fedcore.system.workers.step_counter import counted_steps
from fedcore.training.dtensors import local
from fedcore.training.engines.batches import Batch
from fedcore.training.engines.streams import DataRanks, StreamPlan, is_loader, shares
from fedcore.training.engines.transfer import Entry
from fedcore.training.engines.world import World
from fedcore.training.structures import moved


class GradientAverage:
    """Averages the gradients of one engine's own loops.

    share: of the loss of the next backward pass, for the mean over the whole batch: this rank's part of the examples
        times the number of ranks.
    idle: whether the engine averages by other means just now.
    """

    def __init__(self, world: World) -> None:
        self.share = 1.0
        self.idle = False
        self._world = world
        self._parameters: list[nn.Parameter] = []
        self._indices: dict[int, int] = {}
        self._touched: set[int] = set()
        self._models: list[nn.Module] = []

    def __bool__(self) -> bool:
        """Whether anything was prepared."""
        return bool(self._parameters)

    def watch(self, parameters: Iterable[Tensor]) -> None:
        """Average these, too; every rank has to give the same ones."""
        for parameter in parameters:
            if self._world.size == 1 or id(parameter) in self._indices or not parameter.requires_grad:
                continue
            index = self._indices[id(parameter)] = len(self._parameters)
            self._parameters.append(parameter)  # type: ignore[arg-type]
            parameter.register_hook(self._weighed)  # type: ignore[no-untyped-call]
            parameter.register_post_accumulate_grad_hook(self._noting(index))  # type: ignore[no-untyped-call]

    def add_model(self, module: nn.Module, device: torch.device) -> None:
        """A model that is no part of the engine's: rank 0's values on every rank."""
        module.to(device)
        if any(module is model for model in self._models):
            return
        self._models.append(module)
        if self._world.size > 1:
            with torch.no_grad():
                for tensor in [*module.parameters(), *module.buffers()]:
                    dist.broadcast(tensor, src=0)

    def entries(self) -> Iterator[Entry]:
        """What ranks hold copies of in addition to the engine's model."""
        for number, model in enumerate(self._models, start=1):
            for name, parameter in model.named_parameters():
                yield Entry.of(f"{type(model).__name__} {number}: {name}", parameter)

    @contextlib.contextmanager
    def set_aside(self) -> Iterator[None]:
        """While the engine averages by other means."""
        self.idle = True
        try:
            yield
        finally:
            self.idle = False

    def sharing(self, batches: Iterator[Batch], ranks: int) -> Iterator[Batch]:
        """The batches; while one is worked on, `share` is what this rank's mean counts for in the mean of all."""
        try:
            for batch in batches:
                self.share = 0.0 if batch.weights is not None else len(batch) * ranks / batch.total
                yield batch
        finally:
            self.share = 1.0

    def mean_loss(self, loss: Tensor) -> Tensor:
        """The loss over the whole batch, the same on every rank."""
        return self._world.sum(loss.detach().clone() * self.share) / self._world.size

    def _weighed(self, gradient: Tensor) -> Tensor | None:
        return None if self.idle or self.share == 1.0 else gradient * self.share

    def _noting(self, index: int) -> Callable[[Tensor], None]:
        def note(parameter: Tensor) -> None:
            del parameter
            if self.idle:
                return
            if not self._touched:
                # As DistributedDataParallel does: at the end of the backward pass that runs.
                torch.autograd.Variable._execution_engine.queue_callback(self._average)  # noqa: SLF001
            self._touched.add(index)

        return note

    def _average(self) -> None:
        touched, self._touched = self._touched, set()
        there = [index in touched for index in range(len(self._parameters))]
        average_gradients(self._parameters, self._world, there=there)


@torch.no_grad()
def average_gradients(
    parameters: Sequence[nn.Parameter],
    world: World,
    group: dist.ProcessGroup | None = None,
    *,
    there: Sequence[bool] | None = None,
) -> None:
    """Make each gradient the mean over the ranks of `group`, by default all; a rank without one counts as zero.

    Args:
        there: which of them have a new gradient, by default all that have one.
    """
    own = there if there is not None else [p.grad is not None for p in parameters]
    sparse = [has and p.grad is not None and p.grad.is_sparse for has, p in zip(own, parameters, strict=True)]
    counts = torch.tensor([own, sparse], dtype=torch.float32, device=world.device)
    dist.all_reduce(counts, group=group)
    size = dist.get_world_size(group)
    dense: dict[tuple[torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
    for parameter, count, sparse_count in zip(parameters, *counts.tolist(), strict=True):
        if not count:
            continue
        if 0 < sparse_count == count:
            _average_sparse(parameter, size, group)
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        elif parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()
        gradient = local(parameter.grad)
        dense[gradient.dtype, gradient.device].append(gradient)
    for gradients in dense.values():
        _average_together(gradients, size, group)


def _average_together(gradients: Sequence[Tensor], size: int, group: dist.ProcessGroup | None) -> None:
    """In one message, whose order is the same on all ranks."""
    together = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(together, group=group)
    parts = torch.split(together.div_(size), [gradient.numel() for gradient in gradients])
    for gradient, mean in zip(gradients, parts, strict=True):
        gradient.copy_(mean.view_as(gradient))


def _average_sparse(parameter: nn.Parameter, size: int, group: dist.ProcessGroup | None) -> None:
    if parameter.grad is None:
        empty = torch.zeros((1, 0), dtype=torch.int64, device=parameter.device)
        values = parameter.new_zeros((0, *parameter.shape[1:]))
        parameter.grad = torch.sparse_coo_tensor(empty, values, parameter.shape)
    mean = parameter.grad.coalesce()
    dist.all_reduce(mean, group=group)
    parameter.grad = mean / size


def needs_closure(optimizer: type[torch.optim.Optimizer]) -> bool:
    """Whether its step computes the loss again, as that of LBFGS."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


class OwnLoops(DataRanks, Protocol):
    """What an engine has that your own loop needs; see there."""

    model: nn.Module
    module: nn.Module
    config: EngineConfig
    world: World
    own_loops: GradientAverage
    replicates: ClassVar[bool]


def prepare(engine: OwnLoops, objects: Sequence[Any]) -> tuple[Any, ...]:
    """What `Engine.prepare` does, and raises."""
    if not engine.replicates:
        raise ConfigurationError(
            f"engine {engine.config.engine} has the model in parts, and cannot prepare models and optimizers of a loop "
            "of your own: use engine single or ddp, or train through engine.step",
            check="prepare-engine",
        )
    return tuple(_prepared(engine, one) for one in objects)


def _prepared(engine: OwnLoops, one: Any) -> Any:
    average = engine.own_loops
    if isinstance(one, nn.Module):
        if not any(one is part for part in (engine.model, *engine.module.modules())):
            average.add_model(one, engine.device)
        average.watch(one.parameters())
        return one
    if isinstance(one, torch.optim.Optimizer):
        average.watch(p for group in one.param_groups for p in group["params"])
        if engine.world.size > 1 and needs_closure(type(one)):
            one.register_step_pre_hook(_with_mean_loss(average))
        return one
    if isinstance(one, torch.optim.lr_scheduler.LRScheduler):
        return one
    if is_loader(one):
        return PreparedLoader(engine, one)
    raise ConfigurationError(
        f"prepare takes models, optimizers, schedulers and DataLoaders, not a {type(one).__name__}",
        check="cannot-prepare",
    )


def _with_mean_loss(average: GradientAverage) -> Callable[..., Any]:
    """Have a closure return the loss over the whole batch, by which LBFGS decides alike on all ranks."""

    def hook(optimizer: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        closure = named["closure"] if "closure" in named else arguments[-1]
        return (optimizer, lambda: average.mean_loss(torch.as_tensor(closure()))), {}

    return hook


class PreparedLoader:
    """A DataLoader whose batches are this rank's part of each, on the engine's device."""

    def __init__(self, engine: OwnLoops, loader: Any) -> None:
        self._engine, self.loader = engine, loader

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not there yet, as while it is copied
            raise AttributeError(name)
        return getattr(self.loader, name)  # its dataset, its sampler, ...

    def __iter__(self) -> Iterator[Any]:
        return counted_steps(self._batches())

    def _batches(self) -> Iterator[Any]:
        engine, average = self._engine, self._engine.own_loops
        if engine.world.size == 1:
            for batch in self.loader:
                yield moved(batch, engine.device)
            return
        # All ranks have to read the batches in one order, whatever each has drawn before.
        seed = torch.randint(2**31, (1,)).to(engine.device)
        dist.broadcast(seed, src=0)
        try:
            for share in shares(engine, self.loader, StreamPlan(batch_size=0, epochs=1, seed=int(seed)), 0):
                average.share = 0.0 if share.empty else share.size * engine.world.size / share.total
                yield moved(share.content, engine.device)
        finally:
            average.share = 1.0
