"""Parameters, gradients and optimizer state sharded over the ranks; one block at a time is gathered to compute."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.modules.batchnorm import _BatchNorm

from fedcore.training.dtensors import local
from fedcore.training.engines.base import Engine
from fedcore.training.engines.batches import Batch
from fedcore.training.engines.building import plan_of, prepare, unplaced

_HOST = torch.device("cpu")


class FsdpEngine(Engine):
    """fully_shard (FSDP2), over all ranks or, as "hsdp", within groups of `EngineConfig.shard` ranks.

    A rank keeps 1/shards of the weights, gradients and moments, and gathers the rest block by block: the memory of
    ZeRO stage 3 (Rajbhandari et al. 2020). Gradients are reduced after every micro-batch, since keeping them until the
    last one would take the whole gradient's memory on each rank; only the all-reduce between groups waits for it.
    """

    model: nn.Module

    def _build(self) -> None:
        self.module = self.model = prepare(unplaced(self.recipe), self.config)
        without_memory = any(parameter.is_meta for parameter in self.module.parameters())
        self._shard()
        if without_memory:
            _materialise(self.module, _HOST if self.config.offload else self.device, self.device)

    def _shard(self) -> None:
        mesh, precision, offload = self._mesh(), self._mixed_precision(), self._offload()
        if self.config.precision == "bf16":
            # Batch norm computes with its running statistics, which stay float32, and cannot mix the two.
            for norm in [part for part in self.module.modules() if isinstance(part, _BatchNorm)]:
                fully_shard(norm, mesh=mesh, offload_policy=offload)
        for block in _separate_blocks(self.module):
            if not isinstance(block, FSDPModule):
                fully_shard(block, mesh=mesh, mp_policy=precision, offload_policy=offload)
        fully_shard(self.module, mesh=mesh, mp_policy=precision, offload_policy=offload)

    def _mesh(self) -> DeviceMesh:
        size, shard = self.world.size, self.config.shard
        if self.config.engine == "hsdp":
            return init_device_mesh(self.device.type, (size // shard, shard), mesh_dim_names=("replicate", "shard"))
        return init_device_mesh(self.device.type, (size,), mesh_dim_names=("shard",))

    def _mixed_precision(self) -> MixedPrecisionPolicy:
        """Parameters are gathered as bfloat16, and gradients summed in float32.

        Autocast, under which the model runs as with every other engine, has then nothing to convert. Alone it would
        keep a bfloat16 copy of each gathered block until the backward pass.
        """
        if self.config.precision == "fp32":
            return MixedPrecisionPolicy()
        return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

    def _offload(self) -> OffloadPolicy:
        if not self.config.offload:
            return OffloadPolicy()
        return CPUOffloadPolicy(pin_memory=self.device.type == "cuda")

    @contextlib.contextmanager
    def _synchronised(self, last: bool) -> Iterator[None]:
        if isinstance(self.module, FSDPModule):
            self.module.set_requires_all_reduce(last)
        yield

    def reset_optimizer(self) -> None:
        self._reshard()
        super().reset_optimizer()

    def parameters(self) -> list[nn.Parameter]:
        self._reshard()
        return super().parameters()

    def outputs(self, batch: Batch) -> Tensor | None:
        output = super().outputs(batch)
        self._reshard()
        return output

    def _reshard(self) -> None:
        """The root stays gathered after a forward pass, in case a backward pass follows."""
        if isinstance(self.module, FSDPModule):
            self.module.reshard()


def _separate_blocks(module: nn.Module) -> list[nn.Module]:
    """The blocks that share no parameter with the rest of the model; what the others hold is gathered with the root."""
    uses = _uses(module)
    blocks = (module.get_submodule(name) for name in plan_of(module).blocks)
    return [block for block in blocks if all(uses[key] == count for key, count in _uses(block).items())]


def _uses(module: nn.Module) -> Counter[int]:
    """How many modules have each parameter, by its id."""
    return Counter(id(p) for part in module.modules() for p in part.parameters(recurse=False))


def _materialise(module: nn.Module, parameters_on: torch.device, buffers_on: torch.device) -> None:
    """Give the sharded model its memory. Its weights are NaN until they are loaded, so that nobody trains without."""
    # It swaps the contents of a sharded parameter, which stays the same object: what has two names stays one.
    module.to_empty(device=parameters_on)
    with torch.no_grad():
        for parameter in module.parameters():
            local(parameter).fill_(torch.nan)
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            setattr(part, name, buffer.to(buffers_on))
