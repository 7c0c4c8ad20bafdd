"""What is done to the blocks of a model before an engine wraps it: activation checkpointing, compilation."""

from __future__ import annotations

import functools
import os
import shutil

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
    if config.checkpoint:
        if not blocks:
            raise ConfigurationError(
                f"checkpoint needs blocks, and {type(module).__name__} names none; give it a method parallel_plan()"
            )
        for block in blocks:
            _checkpoint(block)
    if config.compile:
        _check_compiler()
        for part in blocks or [module]:
            part.compile()
    return module


def _checkpoint(block: nn.Module) -> None:
    """Only the block's input is kept for the backward pass.

    The forward function is replaced and not the module: hooks that gather a sharded block's parameters stay outside,
    and do not run a second time when the block is computed again.
    """
    block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


def _check_compiler() -> None:
    named = os.environ.get("CXX")
    if not any(shutil.which(name) for name in ([named] if named else _COMPILERS)):
        raise ConfigurationError(
            f"compile needs a C++ compiler, and there is no {named or ' or '.join(_COMPILERS)}; install one or name it "
            "in CXX"
        )
