"""Training that averages models every H steps: local SGD, and DiLoCo with its outer optimizer.

Each rank trains on its own between two averages. Then the outer optimizer makes one step with the mean over the ranks
of (shared model - own model) as its gradient, and all go on from its result (Douillard et al. 2023, "DiLoCo", algorithm
1). With an outer learning rate of 1 and no momentum that result is the mean of the models: local SGD (Stich 2019).
Inner optimizers keep their history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

MakeOuter = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""Makes the outer optimizer for a copy of the parameters."""


def outer_sgd(*, lr: float = 1.0, momentum: float = 0.0) -> MakeOuter:
    """SGD with Nesterov momentum, DiLoCo's choice (section 3.1); the defaults are local SGD."""
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=momentum, nesterov=momentum > 0)


class Averager:
    """The shared model of all ranks of the default process group, and its outer optimizer.

    Every rank makes one around the same weights, and calls `average` at the same steps.
    """

    def __init__(self, module: nn.Module, make_outer: MakeOuter) -> None:
        self._own = [p for p in module.parameters() if p.requires_grad]
        self._shared = [nn.Parameter(p.detach().clone()) for p in self._own]
        self._outer = make_outer(self._shared)
        persistent = module.state_dict(keep_vars=True)
        self._statistics = [
            buffer for name, buffer in module.named_buffers() if name in persistent and buffer.is_floating_point()
        ]

    @torch.no_grad()
    def average(self, weight: float) -> None:
        """Make one outer step, and set this rank's parameters to its result; running statistics become their mean.

        Args:
            weight: of this rank, such that the weights of all ranks add up to 1. Each dtype is sent as one vector.
        """
        for shared, own in zip(self._shared, self._own, strict=True):
            shared.grad = (shared - own).mul_(weight)
        for buffer in self._statistics:
            buffer.mul_(weight)
        _sum_over_ranks([*(shared.grad for shared in self._shared if shared.grad is not None), *self._statistics])
        self._outer.step()
        self._outer.zero_grad()
        for shared, own in zip(self._shared, self._own, strict=True):
            own.copy_(shared)


def _sum_over_ranks(tensors: Sequence[Tensor]) -> None:
    """In place, with one all-reduce for each dtype."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        alike = [tensor for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.reshape(-1) for tensor in alike])
        dist.all_reduce(flat)
        parts = torch.split(flat, [tensor.numel() for tensor in alike])
        for tensor, part in zip(alike, parts, strict=True):
            tensor.copy_(part.view_as(tensor))
