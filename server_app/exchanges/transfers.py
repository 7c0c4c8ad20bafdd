"""Who of an exchange is in the middle of its download or its upload, which lines make long and interrupt.

A client says how much of its model it has by its heartbeats: bytes that a server has handed on may lie in a buffer, or
come from a proxy. An upload is under way from its first part to its manifest, unless the client hung up: a line that
pauses says nothing, and a process that ends says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from starlette.requests import ClientDisconnect

from fedcore.monitoring import formatting as units


class Transfer(Enum):
    """What may take long, and be interrupted."""

    DOWNLOAD = "download"
    UPLOAD = "upload"


@dataclass(slots=True)
class _Download:
    """received: bytes, as the client said last; None where it fetches none, any more or yet. changed: when it did."""

    received: int | None
    changed: float


class Transfers:
    """clock: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._downloads: dict[int, _Download] = {}
        self._uploads: set[int] = set()

    def asked(self, client: int) -> None:
        """The client asks for the model."""
        self._downloads[client] = _Download(None, self._clock())

    def heard(self, client: int, received: int | None) -> None:
        """What a heartbeat says: bytes of the model so far, None where the client fetches none."""
        known = self._downloads.get(client)
        if known is not None and known.received != received:
            known.received, known.changed = received, self._clock()

    def went_on(self, client: int) -> None:
        """The client has done what comes after its download."""
        self._downloads.pop(client, None)

    @contextlib.contextmanager
    def sending(self, client: int) -> Iterator[None]:
        """A part of the client's update arrives."""
        self.went_on(client)
        self._uploads.add(client)
        try:
            yield
        except ClientDisconnect:
            self._uploads.discard(client)
            raise

    def sent(self, client: int) -> None:
        """The client says that this was all of its update."""
        self._uploads.discard(client)

    def under_way(self, client: int) -> Transfer | None:
        """What the client is in the middle of."""
        if self._received(client) is not None:
            return Transfer.DOWNLOAD
        return Transfer.UPLOAD if client in self._uploads else None

    def why_late(self, client: int, size: int, seconds: float) -> str:
        """What keeps a client whose time is up after `seconds`, and what to do; empty where it is in no transfer.

        size: bytes of the model.
        """
        match self.under_way(client):
            case Transfer.DOWNLOAD:
                received = units.size(self._received(client) or 0)
                return (
                    f"its download of the model had come to {received} of {units.size(size)} after {seconds:.0f} s; "
                    "train-seconds gives more time in all, step-seconds more without progress, and download-bits = 16 "
                    "sends less"
                )
            case Transfer.UPLOAD:
                return (
                    f"its upload was not complete after {seconds:.0f} s; train-seconds gives more time, field-bits and "
                    "upload-fraction make it smaller"
                )
        return ""

    def newest(self, clients: Iterable[int]) -> float | None:
        """When the download of one of them last made progress, or ended."""
        return max((self._downloads[one].changed for one in clients if one in self._downloads), default=None)

    def _received(self, client: int) -> int | None:
        known = self._downloads.get(client)
        return known.received if known is not None else None
