"""Messages between workers, shards and the leading shard: vectors, over a gloo group of each two processes.

A group of its own for each worker and shard lets workers come, go and die alone: a group of all would end with its
first member. The sides find each other through a file. Every message is a header of eight float64 numbers, and where
both sides expect one, a float32 vector behind it, sent from where it lies.
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

from fedcore.comparison.parameter_server.update_order import Action, Apply, Push, SendModel, Snapshot, StepTaken
from fedcore.system.peers import PeerLost

HEADER_CELLS: Final = 8
HEADER_BYTES: Final = 8 * HEADER_CELLS
_SERVER, _WORKER = 0, 1


class _PendingTransfer(Protocol):
    def wait(self) -> bool: ...


@dataclass(slots=True)
class Pair:
    """One end of the connection. Used by one thread at a time."""

    _group: ProcessGroup
    _peer: int
    _lost: str

    @classmethod
    def serve(cls, meeting_point: Path, peer: str, *, seconds: float) -> Pair:
        """The server's end; waits for the worker's.

        Args:
            meeting_point: a path that both sides name and no one used before.
            peer: the name of the other side.
            seconds: how long one side waits for the other before it takes it for lost.
        """
        return cls._meet(meeting_point, _SERVER, _WORKER, peer, seconds)

    @classmethod
    def join(cls, meeting_point: Path, peer: str, *, seconds: float) -> Pair:
        """The worker's end."""
        return cls._meet(meeting_point, _WORKER, _SERVER, peer, seconds)

    @classmethod
    def _meet(cls, meeting_point: Path, own: int, other: int, peer: str, seconds: float) -> Pair:
        lost = f"{peer} is gone: its process ended, or was silent for more than {seconds:g} s"
        store = FileStore(str(meeting_point), 2)
        try:
            group = ProcessGroupGloo(store, own, 2, timedelta(seconds=seconds))
        except RuntimeError as error:
            raise PeerLost(lost) from error
        return cls(cast(ProcessGroup, group), other, lost)

    def send(self, header: Tensor, body: Tensor | None = None) -> None:
        """Send a header, float64 [8], and a body, float32 [n]; raises PeerLost."""
        self._transfer(self._group.send, header, body)

    def receive(self, header: Tensor, body: Tensor | None = None) -> None:
        """Fill header and body with the next message; raises PeerLost."""
        self._transfer(self._group.recv, header, body)

    def _transfer(
        self, start: Callable[[list[Tensor], int, int], _PendingTransfer], header: Tensor, body: Tensor | None
    ) -> None:
        parts = [header] if body is None else [header, body]
        try:
            for work in [start([part], self._peer, tag) for tag, part in enumerate(parts)]:
                work.wait()
        except RuntimeError as error:  # gloo's own words say where in gloo: they are for the log
            raise PeerLost(self._lost) from error


def be_local() -> None:
    """Listen on the loopback, and not on the address of the machine's name: nobody outside needs to reach a pair."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def new_header(*values: float) -> Tensor:
    """A header that begins with `values`; zeros behind them."""
    return torch.tensor([*values, *[0.0] * (HEADER_CELLS - len(values))], dtype=torch.float64)


# --- headers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PushPullRequest:
    """From a worker to a shard: a push, and the wish for the next model; the first one has no push.

    sent: seconds on the simulated clock, 0 without one.
    """

    push: Push | None
    sent: float

    def header(self) -> Tensor:
        push = self.push
        if push is None:
            return new_header(0, self.sent)
        return new_header(1, self.sent, push.examples, push.total, push.loss, push.last)

    @classmethod
    def read(cls, header: Tensor) -> PushPullRequest:
        kind, sent, examples, total, loss, last, *_ = header.tolist()
        push = Push(examples=int(examples), total=int(total), loss=loss, last=bool(last)) if kind else None
        return cls(push, sent)


@dataclass(frozen=True, slots=True)
class PushPullReply:
    """From a shard to a worker, before the model.

    time: when it is there on the simulated clock.
    round: rounds that are over.
    """

    time: float
    round: int

    def header(self) -> Tensor:
        return new_header(self.time, self.round)

    @classmethod
    def read(cls, header: Tensor) -> PushPullReply:
        time, number, *_ = header.tolist()
        return cls(time, int(number))


_APPLY, _ANSWER, _STEP_DONE, _SNAPSHOT = range(1, 5)


def write_action(action: Action | None, workers: int) -> Tensor:
    """For the other shards, float64 [2 + workers]: kind, a number, and a mark for each worker; None is the end."""
    message = torch.zeros(2 + workers, dtype=torch.float64)
    match action:
        case Apply(members, scale):
            message[0], message[1] = _APPLY, scale
            message[[2 + worker for worker in members]] = 1
        case SendModel(worker):
            message[0], message[1] = _ANSWER, worker
        case StepTaken(worker):
            message[0], message[1] = _STEP_DONE, worker
        case Snapshot(number):
            message[0], message[1] = _SNAPSHOT, number
    return message


def read_action(message: Tensor) -> Action | None:
    """The inverse of `write_action`."""
    kind, value, *marks = message.tolist()
    if kind == _APPLY:
        return Apply(tuple(number for number, mark in enumerate(marks) if mark), value)
    if kind == _ANSWER:
        return SendModel(int(value))
    if kind == _STEP_DONE:
        return StepTaken(int(value))
    return Snapshot(int(value)) if kind == _SNAPSHOT else None
