"""Batch normalisation whose statistics are those of the whole batch, over all ranks that have a part of it.

What torch's SyncBatchNorm does on GPUs, for any device: mean and variance are sums over all ranks, forward and
backward, so that a step of several ranks is that of one (Ioffe and Szegedy 2015, algorithm 1, over the whole batch).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def synchronise(module: nn.Module, share: Callable[[], float] = lambda: 1.0) -> None:
    """Have all batch normalisation of a model use the statistics of all ranks while it trains, in place.

    The forward functions are replaced and not the modules, so that names stay as they are.

    Args:
        module: the model.
        share: by what this rank's gradients will be multiplied before they are added to those of others. At 0 its row
            only stands in for examples: it is not in the statistics, although it has to go through the model.
    """
    for part in module.modules():
        if isinstance(part, _BatchNorm):
            part.forward = functools.partial(_forward, part, share)  # type: ignore[method-assign]


class _Sum(torch.autograd.Function):
    """The sum over all ranks of what each has, and of the gradients that each gives back."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, share: float) -> Tensor:
        """Every rank has to call it."""
        ctx.share = share
        return _summed(value * (share > 0))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """The sum of the ranks' gradients, each by its share; divided by this rank's, which is multiplied later."""
        total = _summed(gradients[0] * ctx.share)
        return (total / ctx.share if ctx.share else torch.zeros_like(total)), None


def _summed(value: Tensor) -> Tensor:
    total = value.clone()
    dist.all_reduce(total)
    return total


def _forward(norm: _BatchNorm, share: Callable[[], float], x: Tensor) -> Tensor:
    """`norm(x)` for x [n, c, ...], with the statistics of all ranks' examples if it trains."""
    if not norm.training and norm.running_mean is not None:
        return type(norm).forward(norm, x)
    norm._check_input_dim(x)  # type: ignore[no-untyped-call]  # noqa: SLF001 - torch's own check
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    others = [dimension for dimension in range(x.dim()) if dimension != 1]
    shape = [1, -1, *[1] * (x.dim() - 2)]
    own_share = share()
    own = wide.new_tensor([x.numel() / x.shape[1]])
    sums: Tensor = _Sum.apply(torch.cat([wide.sum(others), own]), own_share)  # type: ignore[no-untyped-call]
    total = sums[-1].detach()
    number = total.clamp(min=1)  # of micro-batches all ranks may have none
    mean = sums[:-1] / number
    centred = wide - mean.view(shape)
    variance: Tensor = _Sum.apply(centred.square().sum(others), own_share) / number  # type: ignore[no-untyped-call]
    if norm.training and norm.track_running_stats:
        _track(norm, mean.detach(), variance.detach() * number / (number - 1).clamp(min=1), total > 0)
    value = centred * (variance + norm.eps).rsqrt().view(shape)
    if norm.affine:
        value = value * norm.weight.view(shape) + norm.bias.view(shape)
    return value.to(x.dtype)


@torch.no_grad()
def _track(norm: _BatchNorm, mean: Tensor, variance: Tensor, there: Tensor) -> None:
    """Running statistics, as torch updates them; there []: whether any examples are."""
    if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return
    norm.num_batches_tracked.add_(there)
    share = norm.momentum if norm.momentum is not None else 1.0 / max(float(norm.num_batches_tracked), 1.0)
    for running, new in ((norm.running_mean, mean), (norm.running_var, variance)):
        running.lerp_(new.to(running.dtype), there.to(running.dtype) * share)
