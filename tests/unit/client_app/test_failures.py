"""What a rank tells of a lack of memory: a fixed name for the server, and for the owner what to lower."""

from __future__ import annotations

import pytest
import torch

from client_app.ranks.failures import OUT_OF_MEMORY, describe, failure_from
from fedcore.errors import OutOfMemory


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB"), "CUDA out of memory. Tried 2 GiB; lower the batch"),
        (MemoryError(), "MemoryError; lower the batch size"),
        (OutOfMemory("no memory for training with batch size 512"), r"\(no memory for training with batch size 512\)"),
    ],
)  # fmt: skip
def test_the_owner_hears_what_to_lower(error: BaseException, text: str) -> None:
    told = failure_from(describe(error, 1))
    with pytest.raises(type(told), match=rf"^rank 1 is out of memory \(.*{text}|{text}$"):
        raise told
    assert getattr(told, "check", "") == OUT_OF_MEMORY
