"""Each layer split over the ranks of a group ("tp"), and such groups next to each other ("ddp-tp").

Shoeybi et al. (2019, "Megatron-LM"): the ranks of a group see the same examples and each computes a part of every
split layer; one all-reduce for each pair of layers makes the result whole. DTensor does the arithmetic.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatch

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from fedcore.errors import ConfigurationError
from fedcore.training.dtensors import local
from fedcore.training.engines.base import Engine
from fedcore.training.engines.building import ParallelPlan, Split, move_to, plan_of, prepare, tied_names, unplaced
from fedcore.training.engines.own_loops import average_gradients
from fedcore.training.engines.transfer import Entry


class TensorEngine(Engine):
    """A mesh (data, tensor): layers are split over its second dimension, gradients averaged over its first.

    The optimizer has to treat each element by itself, as SGD and Adam do.
    """

    def _build(self) -> None:
        self.module = self.model = prepare(unplaced(self.recipe), self.config)
        # Averages that are being computed; None while gradients only add up.
        self._underway: list[dist.Work] | None = None
        if self.world.size > 1:
            shape = (self.data_size, self._tensor_size)
            self._mesh = init_device_mesh(self.device.type, shape, mesh_dim_names=("data", "tensor"))
            split_layers(self.module, plan_of(self.module), self._mesh["tensor"])
        move_to(self.module, self.device)
        if self.data_size > 1:
            self._average_over(self._mesh["data"])

    def average_gradients(self) -> None:
        """The mean over the groups, for gradients that did not come through `backward`."""
        if self.data_size > 1:
            average_gradients(self.parameters(), self.world, self._mesh["data"].get_group())

    @property
    def _copies_round(self) -> bool:
        return self.device.type == "cuda" and self._tensor_size > 1

    @property
    def _tensor_size(self) -> int:
        return self.config.tensor or self.world.size

    @property
    def data_rank(self) -> int:
        return self.world.rank // self._tensor_size

    @property
    def data_size(self) -> int:
        return self.world.size // self._tensor_size

    def reset_optimizer(self) -> None:
        """A new optimizer without any history."""
        self.optimizer = self.recipe.optimizer(self.module)
        # torch's optimizers work on lists of tensors, which may not mix DTensors and others.
        for group in list(self.optimizer.param_groups):
            replicated = [p for p in group["params"] if not isinstance(p, DTensor)]
            if 0 < len(replicated) < len(group["params"]):
                group["params"] = [p for p in group["params"] if isinstance(p, DTensor)]
                self.optimizer.add_param_group({**group, "params": replicated})

    def entries(self, *, optimizer: bool = False, only: Collection[str] | None = None) -> list[Entry]:
        """As `Engine.entries`; split tensors as DTensors over all ranks."""
        return [
            dataclasses.replace(entry, tensor=self._over_all_ranks(entry.tensor))
            if isinstance(entry.tensor, DTensor)
            else entry
            for entry in super().entries(optimizer=optimizer, only=only)
        ]

    @contextlib.contextmanager
    def _synchronised(self, last: bool) -> Iterator[None]:
        """Around one micro-batch; in the last one, each gradient is averaged over the groups as soon as it is there."""
        self._underway = [] if last else None
        yield
        for work in self._underway or ():
            work.wait()
        self._underway = None

    def _average_over(self, mesh: DeviceMesh) -> None:
        """Have the gradients averaged over `mesh` while the backward pass goes on.

        Not DistributedDataParallel, which makes new parameters of DTensors in every step; and fully_shard would shard.
        """
        group = mesh.get_group()

        def average(parameter: Tensor) -> None:
            if self._underway is None or parameter.grad is None:
                return
            work = dist.all_reduce(local(parameter.grad).div_(mesh.size()), group=group, async_op=True)
            if work is not None:
                self._underway.append(work)

        for parameter in self.parameters():
            parameter.register_post_accumulate_grad_hook(average)  # type: ignore[no-untyped-call]

    def _over_all_ranks(self, tensor: DTensor) -> DTensor:
        """The same memory, as a tensor of the whole mesh and not of one group."""
        return DTensor.from_local(
            tensor.to_local(),
            self._mesh,
            (Replicate(), *tensor.placements),
            run_check=False,
            shape=tensor.shape,
            stride=tensor.stride(),
        )


def split_layers(module: nn.Module, plan: ParallelPlan, mesh: DeviceMesh) -> None:
    """Split the layers of `module` over the ranks of `mesh` as the plan says.

    Raises ConfigurationError for a model without a plan, or whose layers do not divide into equal parts.
    """
    if not plan.tensor:
        raise ConfigurationError(
            f"tensor parallelism does not know how to split {type(module).__name__}: give it a method parallel_plan() "
            "that returns a ParallelPlan with `tensor`, as fedcore.training.models.gpt does; engine fsdp needs none",
            check="tensor-plan",
        )
    if plan.heads % mesh.size():
        raise ConfigurationError(f"{plan.heads} heads cannot be divided among {mesh.size()} ranks")
    splits = _resolve(module, plan.tensor)
    for name, split in splits.items():
        _check_divides(name, module.get_submodule(name), split, mesh.size())
    tied = tied_names(module)
    # Every rank has the same weights already, or none at all.
    parallelize_module(module, mesh, {name: _style(split) for name, split in splits.items()}, src_data_rank=None)
    for names in tied:
        _tie(module, names)


def _resolve(module: nn.Module, patterns: Mapping[str, Split]) -> dict[str, Split]:
    """The name of each layer that a pattern means; * stands for one part of a name."""
    splits: dict[str, Split] = {}
    for pattern, split in patterns.items():
        parts = pattern.split(".")
        names = [
            name
            for name, _ in module.named_modules()
            if name.count(".") == pattern.count(".") and all(map(fnmatch, name.split("."), parts))
        ]
        if not names:
            raise ConfigurationError(f"the parallel plan splits {pattern!r}, but the model has no such layer")
        splits.update(dict.fromkeys(names, split))
    return splits


def _check_divides(name: str, layer: nn.Module, split: Split, ranks: int) -> None:
    """Rows of an embedding and columns of the output may be uneven: DTensor knows the whole there."""
    sizes = {"colwise": "out_features", "rowwise": "in_features"}
    size = getattr(layer, sizes[split]) if split in sizes and isinstance(layer, nn.Linear) else 0
    if size % ranks:
        raise ConfigurationError(f"the {size} {sizes[split]} of layer {name} cannot be divided among {ranks} ranks")


def _style(split: Split) -> ParallelStyle:
    """What torch calls a way to split a layer."""
    styles: dict[Split, ParallelStyle] = {
        "colwise": ColwiseParallel(),
        "rowwise": RowwiseParallel(),
        # A rank has some of the rows; the others count as zero, and the sum over the ranks is the embedding.
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "output": ColwiseParallel(output_layouts=Replicate()),
    }
    return styles[split]


def _tie(module: nn.Module, names: list[str]) -> None:
    """Make one parameter of those that were one before they were split; ConfigurationError if split differently."""
    first = module.get_parameter(names[0])
    for name in names[1:]:
        other = module.get_parameter(name)
        if getattr(other, "placements", None) != getattr(first, "placements", None):
            raise ConfigurationError(f"the parallel plan splits the tied weights {names[0]} and {name} differently")
        path, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(path), attribute, first)
