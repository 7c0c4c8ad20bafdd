"""The pull towards an anchor that FedProx and Ditto add to a client's objective: mu/2 ||w - w0||^2.

FedProx (Li et al. 2020, MLSys, equation 2): w0 is the global model that the round started from, and the pull bounds how
far clients drift apart. Ditto (Li et al. 2021, ICML, equation 2): the personal model is trained in addition to the
global one, which is its w0; mu is called lambda there.

All functions take lists of tensors, so that they serve every engine: of a DTensor they use this rank's shard, and need
no communication. The anchor is sharded as the parameters are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedcore.errors import ConfigurationError, UsageError
from fedcore.training.dtensors import local

CHUNK_ELEMENTS = 1 << 24
"""Elements whose differences are held at a time: a second model would be too much."""


@torch.no_grad()
def add_proximal_gradient(parameters: Sequence[Tensor], anchor: Sequence[Tensor], mu: float) -> None:
    """Add the gradient of mu/2 ||w - w0||^2, mu (w - w0), to the gradients of `parameters`, in place.

    Call it between the last backward pass and the step, before clipping if the pull is to be clipped too. Frozen
    parameters are left out; one that the loss did not reach gets a gradient. A sparse gradient stays one: it gets rows
    of w - w0 that are not zero. Raises ConfigurationError for a mu that is negative or not finite, UsageError if the
    two lists do not have the same shapes.
    """
    if not (math.isfinite(mu) and mu >= 0):
        raise ConfigurationError(
            f"the proximal mu must be a number that is not negative, not {mu}", check="proximal-mu"
        )
    pairs = [(w, w0) for w, w0 in _pairs(parameters, anchor) if w.requires_grad]
    if mu == 0:
        return
    for chunk in _chunks(pairs):
        pulls = torch._foreach_sub([local(w) for w, _ in chunk], [local(w0) for _, w0 in chunk])  # noqa: SLF001
        dense = []
        for (w, _), pull in zip(chunk, pulls, strict=True):
            if w.grad is not None and w.grad.is_sparse:
                w.grad = w.grad + mu * pull.to_sparse(w.grad.sparse_dim())
            else:
                dense.append((_gradient(w), pull))
        if dense:
            torch._foreach_add_(*map(list, zip(*dense, strict=True)), alpha=mu)


def _pairs(parameters: Sequence[Tensor], anchor: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    if len(parameters) != len(anchor):
        raise UsageError(f"the proximal anchor has {len(anchor)} tensors, the model has {len(parameters)} parameters")
    for index, (w, w0) in enumerate(zip(parameters, anchor, strict=True)):
        if local(w).shape != local(w0).shape:  # a broadcast would go unnoticed
            raise UsageError(
                f"tensor {index} of the proximal anchor has another shape than its parameter", check="anchor-shape"
            )
        yield w, w0


def _chunks(pairs: Sequence[tuple[Tensor, Tensor]]) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Stretches of at most CHUNK_ELEMENTS elements, or of one tensor."""
    chunk: list[tuple[Tensor, Tensor]] = []
    elements = 0
    for w, w0 in pairs:
        size = local(w).numel()
        if chunk and elements + size > CHUNK_ELEMENTS:
            yield chunk
            chunk, elements = [], 0
        chunk.append((w, w0))
        elements += size
    if chunk:
        yield chunk


def _gradient(w: Tensor) -> Tensor:
    if w.grad is None:
        w.grad = torch.zeros_like(w)
    return local(w.grad)
