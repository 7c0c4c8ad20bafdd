"""What a rank tells of a lack of memory: a fixed name for the server, and for the owner what to lower."""

from __future__ import annotations

import pytest
import torch

from client_app.ranks.failures import OUT_OF_MEMORY, describe, failure_from
from fedcore.errors import OutOfMemory
from tests.support.raising import raises


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB"), "2 GiB.*micro-batches"),
        (MemoryError(), "MemoryError.*micro-batches"),
        (OutOfMemory("no memory for training with batch size 512"), r"512\)$"),
    ],
)  # fmt: skip
def test_the_owner_hears_what_to_lower(error: BaseException, text: str) -> None:
    told = failure_from(describe(error, 1))
    with raises(type(told), check=OUT_OF_MEMORY, match=rf"\b1\b.*{text}"):
        raise told
