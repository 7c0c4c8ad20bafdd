"""The parameters of several clients as stacked tensors, and an optimizer for those that still train."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedcore.training.engines import Engine
from fedcore.training.proximal import add_proximal_gradient


class Stack:
    """B clients that all start from the engine's parameters.

    values: of each trained parameter, by its name, [B, ...]. Of these, the first k clients take each step: `leaves` are
    views of their part, of which gradients are taken, and the optimizer's state is cut likewise. So the others stay as
    they are, bit for bit.
    """

    def __init__(self, engine: Engine, clients: int) -> None:
        trained = {name: p for name, p in engine.module.named_parameters() if p.requires_grad}
        self.start: Mapping[str, Tensor] = {name: p.detach() for name, p in trained.items()}
        self.values = {name: p.unsqueeze(0).repeat(clients, *[1] * p.dim()) for name, p in self.start.items()}
        self.clients = clients
        self.leaves = self._views(clients)
        self._optimizer = engine.recipe.optimizer(engine.module)
        self._hand_over({trained[name]: leaf for name, leaf in self.leaves.items()})

    def narrow(self, clients: int) -> None:
        """Go on with the first `clients` alone."""
        if clients == self.clients:
            return
        before, self.clients, self.leaves = self.leaves, clients, self._views(clients)
        self._hand_over({before[name]: leaf for name, leaf in self.leaves.items()})

    def step(self, losses: Tensor, totals: Tensor, *, clip_norm: float, mu: float) -> None:
        """One step of every client that still trains, on the mean of its own batch.

        Args:
            losses: of each client's batch together [k].
            totals: examples of each [k].
            clip_norm: bound on the L2 norm of each client's gradient, 0 for none.
            mu: strength of the pull towards the common start.
        """
        self._optimizer.zero_grad()
        losses.backward((1.0 / totals).to(losses.dtype))  # type: ignore[no-untyped-call]
        if mu > 0:
            anchor = [self.start[name].expand_as(leaf) for name, leaf in self.leaves.items()]
            add_proximal_gradient(list(self.leaves.values()), anchor, mu)
        if clip_norm:
            clip_each([leaf.grad for leaf in self.leaves.values() if leaf.grad is not None], clip_norm)
        self._optimizer.step()

    def _views(self, clients: int) -> dict[str, Tensor]:
        return {name: value[:clients].detach().requires_grad_() for name, value in self.values.items()}

    def _hand_over(self, new: Mapping[Tensor, Tensor]) -> None:
        """Give the optimizer other tensors in place of those that it has, and the clients' part of what it keeps."""
        for group in self._optimizer.param_groups:
            group["params"] = [new[tensor] for tensor in group["params"]]
        for old, tensor in new.items():
            state = self._optimizer.state.pop(old, {})
            if state:
                self._optimizer.state[tensor] = {
                    what: value[: self.clients] if isinstance(value, Tensor) and value.dim() else value
                    for what, value in state.items()
                }


@torch.no_grad()
def clip_each(gradients: Sequence[Tensor], max_norm: float) -> None:
    """Scale each client's gradient, over all tensors [k, ...] together, to an L2 norm of at most `max_norm`."""
    wide = functools.reduce(torch.promote_types, (gradient.dtype for gradient in gradients), torch.float32)
    norms = [torch.linalg.vector_norm(g.reshape(len(g), -1), dim=1, dtype=wide).float() for g in gradients]
    norm = torch.stack(norms).square().sum(dim=0).sqrt()
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.view(-1, *[1] * (gradient.dim() - 1)))
