"""The sum of an exchange's masked vectors: growing in the spool, and saved from time to time.

A vector is an object of its own until a saved sum contains it; the saved sum lists the clients whose vectors it has. So
a restart adds the missing vectors to the last saved sum: none twice, and none is lost.

To save it the growing file itself becomes an object, and nobody writes to it any more. The next vector, and the masks
at the end, go into a copy, which is made once the vectors in the saved sum are gone: they and the copy never take room
together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import FedcoreError, RoundFailed, StorageFull, StorageUnavailable
from fedcore.state import sha256_file
from fedcore.system.concurrency import in_thread
from server_app.exchanges.at_rest import intact, update_digest_of
from server_app.exchanges.receipts import retry_until_stored
from server_app.exchanges.sum_file import WORD_BYTES, SumFile, first_words
from server_app.services import Services
from server_app.storage.blobs import discard, link

log = logging.getLogger("fedcore.server")

UPDATES: Final = "updates"
"""The folder of vectors that are in no kept sum yet, below the exchange's."""
_SUMS: Final = "sums"
LEAST_BYTES: Final = 256 << 20
LEAST_VECTORS: Final = 4
"""Vectors between two kept sums, so that writing those costs no more than a quarter of what the vectors cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SavedSum:
    """An object: its key, the clients whose vectors it has, its SHA-256 ("" of a fedcore that wrote none down)."""

    key: str
    clients: frozenset[int]
    sha256: str


class MaskedSum:
    """The sum of the vectors of one exchange, one at a time.

    key
        The folder of the exchange's objects.
    words
        Length of a vector.
    clients
        Clients whose vectors are in the sum.
    """

    def __init__(self, services: Services, run: str, exchange: int, *, key: str, words: int) -> None:
        self.clients: set[int] = set()
        self._file: SumFile | None = None
        self._is_open = False
        self._services = services
        self._run = run
        self._exchange = exchange
        self._key = key
        self._length = words
        self._most_waiting = max(LEAST_BYTES, LEAST_VECTORS * words * WORD_BYTES)
        self._saved: _SavedSum | None = None
        """The one that the database names."""
        self._newest: _SavedSum | None = None
        """The last one that became an object, which the database need not name yet."""
        self._superseded: set[str] = set()
        """Keys of objects that the database may name until it names the next one."""
        self._was_unmasked = False
        self.first: tuple[int, NDArray[np.uint64]] | None = None
        """Whose vector was added first by this process, and its beginning, to be looked at."""
        self._lock = asyncio.Lock()

    def open(self) -> None:
        """Begin with nothing."""
        self.free()
        self._is_open = True

    def free(self) -> None:
        """Delete the file in the spool; nothing is added any more."""
        self._is_open = False
        if self._file is not None:
            self._file.discard()
            self._file = None

    async def _growing(self) -> SumFile:
        """What vectors are added to, once the disk has room for it; begins with what was saved last."""
        if self._file is None:
            file = await retry_until_stored(self._new_file, "the sum")
            if not self._is_open:  # meanwhile
                file.discard()
                raise RoundFailed("the exchange has ended, so nothing is added to its sum")
            self._file = file
        return self._file

    async def _new_file(self) -> SumFile:
        file = SumFile(self._services.spool.create())
        try:
            await in_thread(file.allocate, self._length)
            if self._newest is not None:
                what, saved = f"the sum of exchange {self._exchange}", self._newest
                path = await intact(self._services.objects, saved.key, what, saved.sha256, sha256_file)
                await self._accumulate(file, path)
        except BaseException:  # also if cancelled: no other code knows the file
            file.discard()
            raise
        return file

    def vector(self, client: int) -> str:
        """The key of a client's vector."""
        return f"{self._key}/{UPDATES}/{client}"

    async def add(self, client: int) -> None:
        """Add a vector whose receipt is kept. Raises RoundFailed if adding fails half way, which ruins the sum."""
        async with self._lock:
            path = await retry_until_stored(lambda: self._services.objects.fetch(self.vector(client)), "a vector")
            if self.first is None:
                self.first = (client, await in_thread(first_words, path))
            span = self._services.traces.span("fold", self._run, self._exchange)
            with span, self._services.metrics.fold_seconds.time():
                await self._accumulate(await self._growing(), path)
            self.clients.add(client)
            if len(self.clients - self._saved_clients) * self._length * WORD_BYTES >= self._most_waiting:
                await self._try_save()

    async def save(self) -> None:
        """Save the sum as it is, before anything may depend on it. Raises StorageFull, StorageUnavailable."""
        async with self._lock:
            await self._save()

    @property
    def _saved_clients(self) -> frozenset[int]:
        return self._saved.clients if self._saved is not None else frozenset()

    async def _save(self) -> None:
        if self._saved is not None and self._saved.clients == self.clients:
            return
        if self._newest is None or self._newest.clients != self.clients:
            self._newest = await self._as_object()
        newest = self._newest
        folded = {"key": newest.key, "clients": sorted(newest.clients), "sha256": newest.sha256}
        await self._services.store.save_partial_sum(self._run, self._exchange, folded)
        self._saved = newest
        for key in sorted(self._superseded):
            await self._services.objects.remove(key)
            self._superseded.discard(key)

    async def _as_object(self) -> _SavedSum:
        """Make the growing file an object, and no longer write to it."""
        file, draft = await self._growing(), self._services.spool.unused()
        # A name of its own each time: a server that does not know yet that another one leads must not write over it.
        key, clients = f"{self._key}/{_SUMS}/{self._services.randomness(8).hex()}", frozenset(self.clients)
        try:
            sha256 = await in_thread(sha256_file, file.path)
            await in_thread(link, file.path, draft)
            await self._services.objects.put(draft, key)
        finally:
            discard(draft)
        file.discard()
        self._file = None
        if self._newest is not None:
            self._superseded.add(self._newest.key)
        return _SavedSum(key=key, clients=clients, sha256=sha256)

    async def restore(self, folded: Mapping[str, Any] | None, digests: Mapping[int, str]) -> None:
        """Make the sum of the clients in `digests` again: from the saved one, and the vectors that are not in it.

        Args:
            folded: key, clients and SHA-256 of the saved sum; None without one.
            digests: client -> the digest that it signed of its update.

        Raises:
            RoundFailed: the saved sum has vectors of other clients.
            DamagedAtRest: a file is not what was written.
        """
        self.open()
        self.clients = set(folded["clients"]) if folded else set()
        if folded:
            self._saved = self._newest = _SavedSum(
                key=folded["key"], clients=frozenset(self.clients), sha256=folded.get("sha256", "")
            )
        if not self.clients <= digests.keys():
            raise RoundFailed("the sum that was kept holds vectors of clients that have sent none")
        if folded:
            await self._growing()
        for client in sorted(digests.keys() - self.clients):
            what = f"the update of {self._services.names[client]} in exchange {self._exchange}"
            await intact(self._services.objects, self.vector(client), what, digests[client], update_digest_of)
            await self.add(client)

    async def for_unmasking(self) -> SumFile:
        """The sum for work in place; from the second time on as it was kept, since the first came to no end."""
        if self._was_unmasked:
            self.open()
        self._was_unmasked = True
        return await self._growing()

    async def delete_vectors(self) -> None:
        """Remove all vectors: the stage in which clients send them has ended, also on the disk."""
        await self._services.objects.remove(f"{self._key}/{UPDATES}")

    async def delete(self) -> None:
        """Remove what is left of the sum, once the exchange has ended."""
        await self.delete_vectors()
        await self._services.objects.remove(f"{self._key}/{_SUMS}")

    async def _try_save(self) -> None:
        before = self._saved_clients
        try:
            await self._save()
            for client in sorted(self._saved_clients - before):
                await self._services.objects.remove(self.vector(client))
        except (StorageFull, StorageUnavailable) as error:  # the vectors are there still; the next one tries again
            log.warning("the sum could not be written down: %s", error)

    async def _accumulate(self, file: SumFile, path: Path) -> None:
        try:
            await in_thread(file.add, path, threads=self._services.threads)
        except (OSError, FedcoreError) as error:
            raise RoundFailed(f"a vector could not be added to the sum: {error}") from error
