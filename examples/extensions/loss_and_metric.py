"""The loss of a quantile, and a metric that says how well it is met."""

import torch
from torch import Tensor

from fedcore.training import Loss, Metric


def pinball(output: Tensor, targets: Tensor) -> Tensor:
    """Least if nine in ten targets are below the output (Koenker and Bassett 1978), [n]."""
    error = targets - output.squeeze(1)
    return torch.maximum(0.9 * error, -0.1 * error)


def below(output: Tensor, targets: Tensor) -> Tensor:
    """How many targets are below the output, and how many there are, [2]."""
    return torch.stack([(targets < output.squeeze(1)).sum(), torch.tensor(len(targets), device=output.device)])


loss = Loss("pinball", pinball)
covered = Metric("covered", "max", 2, below, lambda sums: float(sums[0] / sums[1]))
