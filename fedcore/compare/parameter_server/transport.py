"""Vectors between two processes: a gloo group of the two, one for each worker and shard.

A group of its own for each pair lets workers come, go and die alone: a group of all would end with its first member.
The sides find each other through a file. Every message is a header of eight float64 numbers, and where both sides
expect one, a float32 vector behind it, sent from where it lies.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Protocol, cast

import torch
from torch import Tensor
from torch.distributed import FileStore, ProcessGroup, ProcessGroupGloo  # type: ignore[attr-defined]

from fedcore.system.peers import PeerLost

HEADER_CELLS: Final = 8
HEADER_BYTES: Final = 8 * HEADER_CELLS
_SERVER, _WORKER = 0, 1


class _Work(Protocol):
    def wait(self) -> bool: ...


@dataclass(slots=True)
class Pair:
    """One end of the connection. Used by one thread at a time."""

    _group: ProcessGroup
    _peer: int

    @classmethod
    def serve(cls, meeting: Path, *, seconds: float) -> Pair:
        """The server's end; waits for the worker's.

        meeting: a path that both sides name and no one used before. seconds: how long one side waits for the other
        before it takes it for lost.
        """
        return cls(_group(meeting, _SERVER, seconds), _WORKER)

    @classmethod
    def join(cls, meeting: Path, *, seconds: float) -> Pair:
        """The worker's end."""
        return cls(_group(meeting, _WORKER, seconds), _SERVER)

    def send(self, header: Tensor, body: Tensor | None = None) -> None:
        """Send a header, float64 [8], and a body, float32 [n]; raises PeerLost."""
        self._transfer(self._group.send, header, body)

    def receive(self, header: Tensor, body: Tensor | None = None) -> None:
        """Fill header and body with the next message; raises PeerLost."""
        self._transfer(self._group.recv, header, body)

    def _transfer(self, start: Callable[[list[Tensor], int, int], _Work], header: Tensor, body: Tensor | None) -> None:
        parts = [header] if body is None else [header, body]
        try:
            for work in [start([part], self._peer, tag) for tag, part in enumerate(parts)]:
                work.wait()
        except RuntimeError as error:
            raise PeerLost(str(error).splitlines()[0]) from None


def be_local() -> None:
    """Listen on the loopback, and not on the address of the machine's name: nobody outside needs to reach a pair."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def new_header(*values: float) -> Tensor:
    """A header that begins with `values`; zeros behind them."""
    return torch.tensor([*values, *[0.0] * (HEADER_CELLS - len(values))], dtype=torch.float64)


def _group(meeting: Path, rank: int, seconds: float) -> ProcessGroup:
    store = FileStore(str(meeting), 2)
    try:
        return cast(ProcessGroup, ProcessGroupGloo(store, rank, 2, timedelta(seconds=seconds)))
    except RuntimeError as error:
        raise PeerLost(str(error).splitlines()[0]) from None
