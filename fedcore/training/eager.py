"""Optimizers that do not import torch's compiler before a model is compiled.

`torch.optim` imports `torch._dynamo` when an optimizer is made and at each step, so that a compiler does not trace into
it (torch 2.13: `torch._compile._disable_dynamo`, `torch.optim.optimizer._use_grad_for_differentiable`). That is a third
of the processor seconds in which a client starts, for what most never use. If the compiler is not loaded nothing is
being traced, and these functions mean the same without it; once it is loaded they are torch's own again.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

_COMPILER = "torch._dynamo"
Function = Callable[..., Any]


@functools.cache
def load_no_compiler() -> None:
    """Before the first optimizer of a process is made; later, or with a torch that works otherwise, nothing changes."""
    if _COMPILER in sys.modules:
        return
    for method in vars(torch.optim.Optimizer).values():
        if _is_made_by("_disable_dynamo", method):
            _defer(method)
    for kind in vars(torch.optim).values():
        step = vars(kind).get("step") if isinstance(kind, type) else None
        if step is not None and _is_made_by("_use_grad_for_differentiable", step):
            kind.step = _eager(step)


def _is_made_by(decorator: str, function: Any) -> bool:
    """Whether a decorator returned it: its name is that of the function it wraps, but not its code's."""
    code = getattr(function, "__code__", None)
    return code is not None and code.co_qualname.startswith(f"{decorator}.<locals>.")


def _defer(method: Function) -> None:
    """Give the decorator what it would otherwise make at the first call, with the compiler."""
    function = method.__wrapped__  # type: ignore[attr-defined]

    def deferred(*arguments: Any, **named: Any) -> Any:
        if _COMPILER not in sys.modules:
            return function(*arguments, **named)
        del function.__dynamo_disable  # noqa: SLF001 - torch's
        return method(*arguments, **named)

    function.__dynamo_disable = deferred  # noqa: SLF001 - torch's


def _eager(step: Function) -> Function:
    function = step.__wrapped__  # type: ignore[attr-defined]

    @functools.wraps(function)
    def stepped(self: torch.optim.Optimizer, *arguments: Any, **named: Any) -> Any:
        if _COMPILER in sys.modules:
            return step(self, *arguments, **named)
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return function(self, *arguments, **named)

    return stepped
