"""Receipts of the messages of one exchange. A message counts once its receipt, which contains it, is stored."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from fedcore.errors import ConflictingMessage, StorageFull, StorageUnavailable
from fedcore.wire.base import Message
from server_app.storage.store import Store
from server_app.storage.tables import ReceiptRow

log = logging.getLogger("fedcore.server")
T = TypeVar("T")

WITHDRAWAL: Final = "withdrawal"
"""The step of those who leave; it belongs to no stage."""
_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 10.0


class Receipts:
    """The receipts of one exchange, on the disk and their digests in memory."""

    def __init__(self, store: Store, run: str, exchange: int) -> None:
        self._store = store
        self._run = run
        self._exchange = exchange
        self._digests: dict[tuple[str, int], bytes] = {}

    def has(self, client: int, step: str, digest: bytes) -> bool:
        """Whether these very bytes came before; ConflictingMessage if others did."""
        known = self._digests.get((step, client))
        if known is not None and known != digest:
            raise ConflictingMessage("this step was answered before with other content")
        return known is not None

    async def keep(self, client: int, step: str, digest: bytes, body: Message) -> None:
        """Make a message durable; ConflictingMessage if the client sent another one for this step."""
        text = body.model_dump_json().encode()
        await self._store.add_receipt(self._run, self._exchange, step, client, digest, text)
        self._digests[step, client] = digest

    def restore(self, rows: Iterable[ReceiptRow]) -> None:
        """Know what came before a restart."""
        self._digests.update({(row.step, row.client): bytes(row.digest) for row in rows})


async def retry_until_stored(write: Callable[[], Awaitable[T]], what: str) -> T:
    """Repeat a write until the disk has room and the database answers.

    Any other error ends the exchange, which its run may try again; `server_app.runs.persistence.persist` writes what
    nobody tries again, and so repeats after every error.

    write
        One of the store's writes, all of which may be repeated.
    what
        It writes, for the log.
    """
    pause = _FIRST_PAUSE
    while True:
        try:
            return await write()
        except (StorageFull, StorageUnavailable) as error:
            log.error("%s waits until it can be kept: %s", what, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
