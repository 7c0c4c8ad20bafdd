"""Headers of the messages between workers, shards and the leading shard, as float64 vectors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedcore.compare.parameter_server.coordinator import Action, Answer, Apply, Push, Release, Snapshot
from fedcore.compare.parameter_server.transport import new_header


@dataclass(frozen=True, slots=True)
class Request:
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
    def read(cls, header: Tensor) -> Request:
        kind, sent, examples, total, loss, last, *_ = header.tolist()
        push = Push(examples=int(examples), total=int(total), loss=loss, last=bool(last)) if kind else None
        return cls(push, sent)


@dataclass(frozen=True, slots=True)
class Reply:
    """From a shard to a worker, before the model.

    time: when it is there on the simulated clock. round: rounds that are over.
    """

    time: float
    round: int

    def header(self) -> Tensor:
        return new_header(self.time, self.round)

    @classmethod
    def read(cls, header: Tensor) -> Reply:
        time, number, *_ = header.tolist()
        return cls(time, int(number))


_APPLY, _ANSWER, _RELEASE, _SNAPSHOT = range(1, 5)


def write_action(action: Action | None, workers: int) -> Tensor:
    """For the other shards, float64 [2 + workers]: kind, a number, and a mark for each worker; None is the end."""
    message = torch.zeros(2 + workers, dtype=torch.float64)
    match action:
        case Apply(members, scale):
            message[0], message[1] = _APPLY, scale
            message[[2 + worker for worker in members]] = 1
        case Answer(worker):
            message[0], message[1] = _ANSWER, worker
        case Release(worker):
            message[0], message[1] = _RELEASE, worker
        case Snapshot(number):
            message[0], message[1] = _SNAPSHOT, number
    return message


def read_action(message: Tensor) -> Action | None:
    """The inverse of `write_action`."""
    kind, value, *marks = message.tolist()
    if kind == _APPLY:
        return Apply(tuple(number for number, mark in enumerate(marks) if mark), value)
    if kind == _ANSWER:
        return Answer(int(value))
    if kind == _RELEASE:
        return Release(int(value))
    return Snapshot(int(value)) if kind == _SNAPSHOT else None
