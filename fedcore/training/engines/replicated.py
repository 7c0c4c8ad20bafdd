"""The whole model on every rank: on one alone, or on several whose gradients are averaged during the backward pass.

No `from __future__ import annotations` here: DDP looks at the annotations of a hook, and wants types and not names.
"""

import contextlib
import gc
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from fedcore.errors import ConfigurationError
from fedcore.run.engine_config import EngineConfig
from fedcore.training.engines.base import Engine
from fedcore.training.engines.batches import Batch
from fedcore.training.engines.building import made, prepare
from fedcore.training.engines.own_loops import GradientAverage, average_gradients
from fedcore.training.models.synchronised import synchronise


class SingleEngine(Engine):
    """The model as it is, on this process's device."""

    replicates = True

    def _build(self) -> None:
        self.module = self.model = prepare(made(self.recipe), self.config).to(self.device)


class _Core(nn.Module):
    """What DDP wraps: the model, and its loss if that is to be computed inside, where DDP sees all of it."""

    def __init__(self, module: nn.Module, *, looks_for_unused: bool) -> None:
        super().__init__()
        self.module = module
        if looks_for_unused:
            # One parameter that no step uses: DDP warns if it looks for unused ones and there are none.
            first = next(p for p in module.parameters() if p.requires_grad)
            self.unused = nn.Parameter(torch.zeros(1, dtype=first.dtype, device=first.device))

    def forward(self, *arguments: Any, loss: Callable[[nn.Module], Tensor] | None = None, **named: Any) -> Any:
        return self.module(*arguments, **named) if loss is None else loss(self.module)


class _Replica(DistributedDataParallel):
    """DDP whose parts are those of the model: `engine.model.generator` on two ranks as on one."""

    def __init__(self, module: nn.Module, own_loops: GradientAverage, **settings: Any) -> None:
        core = _Core(module, looks_for_unused=settings["find_unused_parameters"])
        super().__init__(core, **settings)
        self._own_loops = own_loops

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """After `prepare` the gradients of your own loop are averaged by its hooks."""
        if self._own_loops and not self._own_loops.idle:
            return self.module(*arguments, **named)
        return super().forward(*arguments, **named)  # type: ignore[no-untyped-call]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            core: Any = super().__getattr__("module")
            return getattr(core.module, name)

    def __getitem__(self, key: Any) -> Any:
        core: Any = self.module
        return core.module[key]

    def named_parameters(self, *arguments: Any, **named: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Those of the model, by its own names."""
        core: Any = self.module
        yield from core.module.named_parameters(*arguments, **named)


class DdpEngine(Engine):
    """DistributedDataParallel over all ranks (Li et al. 2020, "PyTorch Distributed").

    The wrapper stays from round to round: a new state is loaded in place.
    """

    model: DistributedDataParallel
    replicates = True
    _stands_in = False

    def _build(self) -> None:
        self.module = prepare(made(self.recipe), self.config).to(self.device)
        if self.recipe.sync_batch_norm:
            synchronise(self.module, self._share_of_rank)
        self.model = _Replica(
            self.module,
            self.own_loops,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            # The gradients live in the buckets that are sent, and not beside them a second time.
            gradient_as_bucket_view=True,
            static_graph=self.config.static_graph,
            # A rank whose examples do not reach a layer would otherwise leave the others waiting. PowerSGD sends a
            # second message from a callback, which may meet the one about unused parameters of another rank.
            find_unused_parameters=not self.config.static_graph and self.config.hook != "powersgd",
        )
        # Running statistics are each rank's own until `save` averages them; sending rank 0's before every forward pass
        # would drop what the others saw. As an attribute, since the argument has another name from torch 2.13 on.
        self.model.broadcast_buffers = False
        register_hook(self.model, self.config.hook)
        self._traced = not self.config.static_graph

    def backward(self, batch: Batch | Tensor) -> Tensor:
        """As every engine's; raises ConfigurationError for layers that go unused in a step, if none may."""
        try:
            return super().backward(batch)
        except RuntimeError as error:
            reason = _why_all_layers(self.config, self.module, str(error))
            if not reason:
                raise
            raise ConfigurationError(reason, check="layers-unused") from None

    def _share_of_rank(self) -> float:
        """By what the gradients of a pass will be multiplied; 0 of a row that stands in for examples."""
        return float(not self._stands_in) if self.own_loops.idle else self.own_loops.share

    def _objective(self, batch: Batch, weight: float) -> Tensor:
        self._stands_in = batch.stands_in
        loss: Tensor = self.model(loss=lambda module: self._sum_of(module, batch, weight))
        return loss

    def _synchronised(self, last: bool) -> AbstractContextManager[object]:
        if not self._traced:
            # With a static graph the first backward pass decides what is sent when, and may not be left out.
            self._traced = True
            return contextlib.nullcontext()
        return contextlib.nullcontext() if last else self.model.no_sync()

    def average_gradients(self) -> None:
        """The same for gradients that did not come through `model`."""
        average_gradients(self.parameters(), self.world)

    def close(self) -> None:
        """Drop wrapper and optimizer: a wrapper that outlives the process group may abort the process at its exit."""
        super().close()
        del self.model, self.optimizer
        gc.collect()


_NAMED = 5
_UNUSED = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")
"""What DDP says of a step that did not reach all layers; and what, if that is not the same in every step."""
_CHANGED = ("graph has changed", "finished reduction in the prior iteration", "mark a variable ready only once")


def _why_all_layers(config: EngineConfig, module: nn.Module, text: str) -> str:
    """The rule that a program breaks if DDP raises `text`; empty if it is another error."""
    if not any(part in text for part in _CHANGED) or not (config.static_graph or config.hook == "powersgd"):
        return ""
    setting = "static-graph" if config.static_graph else "hook=powersgd"
    rule = "the same layers" if config.static_graph else "all layers"
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    unused = _UNUSED.search(text)
    indices = [int(index) for index in unused[1].split()] if unused else []
    which = ", ".join(names[index] for index in indices[:_NAMED] if index < len(names))
    more = f" and {len(indices) - _NAMED} more" if len(indices) > _NAMED else ""
    return (
        f"with {setting} every step has to reach {rule} on every rank"
        + (f", and one left out {which}{more}" if which else ", and one reached others than those before")
        + f": leave {setting} out, freeze what is never used (requires_grad_(False)), or let the loss use all of them"
    )


_POWERSGD_RANK = 4
"""Rank of the approximation: 2 is enough for a ResNet, 4 for an LSTM (Vogels et al. 2019, section 5)."""

_POWERSGD_START = 10
"""Steps with exact gradients first: early gradients change too fast for an approximation that builds on the last."""


def register_hook(model: DistributedDataParallel, hook: str) -> None:
    """Let DDP send what `EngineConfig.hook` names. What PowerSGD learns stays as long as the wrapper."""
    if hook == "fp16":
        model.register_comm_hook(None, fp16_compress_hook)
    elif hook == "bf16":
        model.register_comm_hook(None, bf16_hook)
    elif hook == "powersgd":
        state = PowerSGDState(
            process_group=None, matrix_approximation_rank=_POWERSGD_RANK, start_powerSGD_iter=_POWERSGD_START
        )
        model.register_comm_hook(state, powerSGD_hook)


def bf16_hook(state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket of gradients, rounded to bfloat16, over the ranks; a Future of the bucket's buffer.

    gloo cannot add bfloat16. There the rounded values are sent as float32, which saves nothing, but trains as over
    NCCL.
    """
    buffer = bucket.buffer()
    sent = (buffer / dist.get_world_size()).to(torch.bfloat16)
    if dist.get_backend() == "gloo":
        sent = sent.to(buffer.dtype)

    def unpack(reduced: torch.futures.Future[list[Tensor]]) -> Tensor:
        return buffer.copy_(reduced.value()[0])

    averaged: torch.futures.Future[Tensor] = dist.all_reduce(sent, async_op=True).get_future().then(unpack)
    return averaged
