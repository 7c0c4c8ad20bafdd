"""What is done to the blocks of a model before an engine wraps it: activation checkpointing, compilation.

Their forward functions are replaced, and not the modules. So the names in a state stay as they are, and the hooks that
gather a sharded block's parameters stay outside: they are not traced, and do not run again when a block is computed
again.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fedcore.config import EngineConfig
from fedcore.errors import ConfigurationError
from fedcore.training.engines.plan import plan_of

_COMPILERS = ("c++", "g++", "clang++")


def prepare(module: nn.Module, config: EngineConfig) -> nn.Module:
    """The same module, whose blocks are checkpointed and compiled as `config` says; names stay as they are.

    Raises ConfigurationError where there are no blocks to checkpoint, or no compiler.
    """
    blocks = [module.get_submodule(name) for name in plan_of(module).blocks]
    if config.compile:
        _check_compiler()
        for part in blocks or [module]:
            part.forward = _compiled(part.forward)
    if config.checkpoint:
        if not blocks:
            raise ConfigurationError(
                f"checkpoint needs blocks, and {type(module).__name__} names none; give it a method parallel_plan()"
            )
        for block in blocks:
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    return module


def _compiled(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, compiled when it is first called.

    Not nn.Module.compile: it leaves out the modules that torch brings along, whose own frames are never traced.
    """

    def traced(*arguments: Any, **named: Any) -> Any:
        return forward(*arguments, **named)

    compiled: Callable[..., Any] = torch.compile(traced)
    return compiled


def _check_compiler() -> None:
    named = os.environ.get("CXX")
    if not any(shutil.which(name) for name in ([named] if named else _COMPILERS)):
        raise ConfigurationError(
            f"compile needs a C++ compiler, and there is no {named or ' or '.join(_COMPILERS)}; install one or name it "
            "in CXX"
        )
