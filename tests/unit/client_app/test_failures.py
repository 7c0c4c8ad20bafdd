"""What a rank tells of a failure: a fixed name for the server, and for the owner what to lower or to allow."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
import torch

from client_app.ranks.failures import OUT_OF_MEMORY, RANK_EXCEPTION, describe, failure_from
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


def reads_what_is_not_there() -> None:
    raise FileNotFoundError(2, "No such file or directory", "data/train.csv")


def writes_next_to_the_client() -> None:
    raise PermissionError(13, "Permission denied", "model.pt")


def downloads() -> None:
    """As libraries for data sets do: the last exception says nothing of why."""
    try:
        raise socket.gaierror(-3, "Temporary failure in name resolution")
    except OSError as error:
        raise RuntimeError("the data set is not there") from error


def refuses_its_data() -> None:
    raise ValueError("a PermissionError would be another matter")


@pytest.mark.parametrize(
    ("app", "sandboxed"),
    [(reads_what_is_not_there, True), (writes_next_to_the_client, True), (downloads, True), (refuses_its_data, False)],
)
def test_the_owner_hears_what_the_sandbox_allows(app: Callable[[], None], sandboxed: bool) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011
        app()
    told = failure_from(describe(raised.value, 0))
    assert told.check == RANK_EXCEPTION
    assert all(word in str(told) for word in ("--data-dir", "--read", "TMPDIR")) == sandboxed
