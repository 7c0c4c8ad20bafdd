"""Products whose batched form vmap gets slowly, done by one batched product each.

vmap gives the gradient of a linear layer's weights with its last two dimensions exchanged, and it then has to be copied
into the order of the weights: on a processor, for a layer of 784 x 200, that takes as long as the product.
Convolutions stay as vmap makes them, one grouped convolution; unfolded into products they took longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class StackedLinear(torch.autograd.Function):
    """The linear layers of B clients: x [B, n, inputs], weight [B, outputs, inputs], bias [B, outputs] or None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """[B, n, outputs]."""
        ctx.save_for_backward(x, weight)
        turned = weight.transpose(1, 2)
        return torch.bmm(x, turned) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, turned)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients, each in the order of its tensor."""
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            torch.bmm(gradient, weight) if of_x else None,
            torch.bmm(gradient.transpose(1, 2), x) if of_weight else None,
            gradient.sum(1) if of_bias else None,
        )


class _Linear(torch.autograd.Function):
    """One client's linear layer, under vmap alone."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Without vmap it is the ordinary one."""
        return functional.linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: the backward pass is that of `StackedLinear`."""

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, int]:
        """Of all clients at once; a layer whose weights they share is left to vmap."""
        of_x, of_weight, of_bias = in_dims
        if of_x is None or of_weight is None or (bias is not None and of_bias is None) or x.dtype != weight.dtype:
            each: Callable[..., Tensor] = torch.vmap(functional.linear, in_dims=(of_x, of_weight, of_bias))
            return each(x, weight, bias), 0
        x, weight = x.movedim(of_x, 0), weight.movedim(of_weight, 0)
        own = None if bias is None or of_bias is None else bias.movedim(of_bias, 0)
        values: Tensor = StackedLinear.apply(x.reshape(len(x), -1, x.shape[-1]), weight, own)  # type: ignore[no-untyped-call]
        return values.view(*x.shape[:-1], -1), 0


class BatchedRules(TorchFunctionMode):
    """While it lasts, linear layers under vmap are computed by the rule above."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Every call of a function of torch."""
        if func is functional.linear:
            return _Linear.apply(*_arguments(*args, **(kwargs or {})))  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


def _arguments(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
    return input, weight, bias
