"""A shard's side of its workers: one thread for each, so that a slow worker holds up nobody else."""

from __future__ import annotations

import contextlib
import queue
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedcore.compare.parameter_server.messages import Reply, Request
from fedcore.compare.parameter_server.transport import Pair, new_header
from fedcore.system.peers import PeerLost


class Knock(NamedTuple):
    """A worker's message, its gradient lying in `Door.body`; without a request the worker is lost."""

    worker: int
    request: Request | None
    reason: str = ""


class _Departure(NamedTuple):
    """What leaves next: a reply, and the model in `Door.body` unless the worker is released."""

    reply: Reply
    last: bool


@dataclass(slots=True)
class Door:
    """Receives one worker's messages and sends it the replies, in its own thread.

    seconds: how long a silent worker is waited for. size: numbers in this shard. inbox: where messages are announced.
    body: float32 [size], the worker's gradient until it is answered, and the model that is sent to it from then on: the
    two are never needed at once.
    """

    worker: int
    meeting: Path
    seconds: float
    size: int
    inbox: queue.SimpleQueue[Knock]
    body: Tensor = field(init=False)
    _outbox: queue.SimpleQueue[_Departure] = field(default_factory=queue.SimpleQueue)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.body = torch.zeros(self.size)
        self._thread = threading.Thread(target=self._run, name=f"door {self.worker}", daemon=True)
        self._thread.start()

    def answer(self, values: Tensor, reply: Reply) -> None:
        """Send the model as it is now, [size]."""
        self.body.copy_(values)
        self._outbox.put(_Departure(reply, last=False))

    def release(self, reply: Reply) -> None:
        """Tell the worker that its last gradient was applied."""
        self._outbox.put(_Departure(reply, last=True))

    def join(self, seconds: float) -> None:
        """Wait until the last message has left."""
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._exchange(Pair.serve(self.meeting, seconds=self.seconds))
        except PeerLost as error:
            self.inbox.put(Knock(self.worker, None, str(error)))

    def _exchange(self, pair: Pair) -> None:
        header = new_header()
        pair.receive(header)
        while True:
            self.inbox.put(Knock(self.worker, Request.read(header)))
            departure = self._outbox.get()
            pair.send(departure.reply.header(), None if departure.last else self.body)
            if departure.last:
                # It closes first: a connection that is closed here would be gone from the worker's count of bytes.
                with contextlib.suppress(PeerLost):
                    pair.receive(header)
                return
            pair.receive(header, self.body)
