"""Tests whether a tensor is sharded over ranks, without importing `torch.distributed.tensor`.

`torch.distributed.tensor` takes most of a second to import, and most clients train on one rank.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs


def is_dtensor(tensor: Tensor | None) -> TypeIs[DTensor]:
    """Whether it is a DTensor; there is none if nobody has imported its module."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds, sharing its memory; the whole of one that is not sharded."""
    if not is_dtensor(tensor):
        return tensor
    own: Tensor = tensor.to_local()
    return own
