"""The sum of an exchange's masked vectors: growing in the spool, and saved from time to time.

A vector is an object of its own until a saved sum contains it; the saved sum lists the clients whose vectors it has. So
a restart adds the missing vectors to the last saved sum: none twice, and none is lost.

To save it the growing file itself becomes an object, and nobody writes to it any more. The next vector, and the masks
at the end, go into a copy, which is made once the vectors in the saved sum are gone: they and the copy never take room
together. For the masks both are done while clients sign who is in the sum.

Large vectors wait instead, and are added to the saved sum segment by segment (`saved_sum.py`), from the last to the
first. Once the database names the new object of a segment, the old one goes, and the vectors are cut before it: the sum
takes the place of the vectors, and never room in addition to that of all of them. A server that does not know yet that
another one leads cannot write to the database, and so cuts nothing that the other one needs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import DamagedAtRest, FedcoreError, LeaseLost, RoundFailed, StorageFull, StorageUnavailable
from fedcore.state import sha256_file
from fedcore.system.concurrency import in_thread
from server_app.exchanges.at_rest import intact, update_digest_of
from server_app.exchanges.receipts import retry_until_stored
from server_app.exchanges.sums.saved_sum import (
    SavedSum,
    Segment,
    first_word,
    is_large,
    joint_digest,
    nothing_saved,
    segment_digests,
    word_count,
)
from server_app.exchanges.sums.sum_file import WORD_BYTES, SumFile, first_words
from server_app.services import Services
from server_app.storage.blobs import discard, link

log = logging.getLogger("fedcore.server")

UPDATES: Final = "updates"
"""The folder of vectors that are in no kept sum yet, below the exchange's."""
_SUMS: Final = "sums"
LEAST_BYTES: Final = 256 << 20
LEAST_VECTORS: Final = 4
"""Vectors between two kept sums, so that writing those costs no more than a quarter of what the vectors cost."""


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
        self._is_large = is_large(words)
        self._digests: dict[int, tuple[str, ...]] = {}
        """Of the segments of large vectors that wait."""
        self._most_waiting = max(LEAST_BYTES, LEAST_VECTORS * words * WORD_BYTES)
        self._saved: SavedSum | None = None
        """The one that the database names."""
        self._newest: SavedSum | None = None
        """The last one that became an object, which the database need not name yet."""
        self._superseded: set[str] = set()
        """Keys of objects that the database may name until it names the next one."""
        self._was_unmasked = False
        self._removing: asyncio.Task[None] | None = None
        self._copying: asyncio.Task[None] | None = None
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
        if self._copying is not None:
            self._copying.cancel()
            self._copying = None
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
            for number, segment in enumerate(self._newest.segments if self._newest is not None else ()):
                if segment is not None:
                    await self._accumulate(file, await self._intact(segment), start=first_word(number))
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
            if self._is_large:
                self._digests[client] = await in_thread(segment_digests, path)
            else:
                with self._measured():
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
        if self._is_large:
            await self._save_segments()
            return
        if self._newest is None or self._newest.clients != self.clients:
            self._newest = await self._as_object()
        newest = self._newest
        await self._store(newest, *newest.segments)
        self._saved = newest
        for key in sorted(self._superseded):
            await self._services.objects.remove(key)
            self._superseded.discard(key)

    async def _save_segments(self) -> None:
        """Add the vectors that wait; first those that an earlier call, or process, has not come to the end of."""
        saved = self._saved or nothing_saved(self._length)
        while saved.adding or saved.clients != self.clients:
            if not saved.adding:
                waiting = sorted(self.clients - saved.clients)
                saved = saved.begin({client: self._digests[client] for client in waiting})
            with self._measured():
                segment = await self._next_segment(saved)
            added = saved.add_last(segment)
            await self._store(added, segment)
            self._saved = self._newest = added
            await self._remove_added(saved)
            saved = added

    async def _store(self, saved: SavedSum, *fresh: Segment | None) -> None:
        """Name a saved sum in the database; if another server leads now, nobody will need its fresh objects."""
        try:
            await self._services.store.save_partial_sum(self._run, self._exchange, saved.to_json())
        except LeaseLost:
            for segment in filter(None, fresh):
                await self._services.objects.remove(segment.key)
            raise

    async def _next_segment(self, saved: SavedSum) -> Segment:
        """The last segment without the vectors that are being added, with them, as an object of its own."""
        objects, start = self._services.objects, first_word(saved.last)
        if not self._is_open:
            raise RoundFailed("the exchange has ended, so nothing is added to its sum")
        file = SumFile(self._services.spool.create())
        try:
            await in_thread(file.allocate, word_count(saved.last, self._length))
            if (before := saved.segments[saved.last]) is not None:
                await self._accumulate(file, await self._intact(before))
            for client in saved.adding:
                await self._accumulate(file, await self._vector_of(client), start=start)
            segment = Segment(key=self._unused_key(), sha256=await in_thread(sha256_file, file.path))
            await objects.put(file.path, segment.key)
        finally:
            file.discard()
        return segment

    async def _remove_added(self, saved: SavedSum) -> None:
        """Remove what the next saved sum has in a new segment."""
        objects, last = self._services.objects, saved.last
        if (before := saved.segments[last]) is not None:
            await objects.remove(before.key)
        for client in saved.adding:
            await objects.cut(self.vector(client), first_word(last) * WORD_BYTES)

    def _unused_key(self) -> str:
        """A name of its own each time: a server that knows of no other leader must not write over that one's object."""
        return f"{self._key}/{_SUMS}/{self._services.randomness(8).hex()}"

    async def _as_object(self) -> SavedSum:
        """Make the growing file an object, and no longer write to it."""
        file, draft = await self._growing(), self._services.spool.unused()
        key, clients = self._unused_key(), frozenset(self.clients)
        try:
            sha256 = await in_thread(sha256_file, file.path)
            await in_thread(link, file.path, draft)
            await self._services.objects.put(draft, key)
        finally:
            discard(draft)
        file.discard()
        self._file = None
        if self._newest is not None:
            self._superseded |= {segment.key for segment in self._newest.segments if segment is not None}
        return SavedSum(clients=clients, segments=(Segment(key=key, sha256=sha256),))

    async def restore(self, folded: Mapping[str, Any] | None, digests: Mapping[int, str]) -> None:
        """Make the sum of the clients in `digests` again: from the saved one, and the vectors that are not in it.

        Args:
            folded: the saved sum, as it describes itself; None without one.
            digests: client -> the digest that it signed of its update.

        Raises:
            RoundFailed: the saved sum has vectors of other clients.
            DamagedAtRest: a file is not what was written.
        """
        self.open()
        saved = SavedSum.from_json(folded) if folded else nothing_saved(self._length)
        self.clients = {*saved.clients, *saved.adding}
        if folded:
            self._saved = self._newest = saved
        if not self.clients <= digests.keys():
            raise RoundFailed("the sum that was kept holds vectors of clients that have sent none")
        for segment in filter(None, saved.segments):
            await self._intact(segment)
        for client, own in saved.adding.items():
            # Of what a segment has no byte is needed any more, and it may be gone.
            self._digests[client] = own
            await self._check_rest(client, own[: saved.left])
        for client in sorted(digests.keys() - self.clients):
            what, digest = self._update_of(client), digests[client]
            await intact(self._services.objects, self.vector(client), what, digest, update_digest_of)
            await self.add(client)

    def prepare_unmasking(self) -> None:
        """Begin to remove all vectors, and then to copy the sum: the stage in which clients send them has ended."""
        self._removing = asyncio.create_task(self._remove_vectors())
        self._copying = asyncio.create_task(self._copy(self._removing))
        for task in (self._removing, self._copying):
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may be that nobody waits

    async def _copy(self, removing: asyncio.Task[None]) -> None:
        await asyncio.wait({removing})
        await self._growing()

    async def for_unmasking(self) -> SumFile:
        """The sum for work in place; from the second time on as it was kept, since the first came to no end."""
        if (copying := self._copying) is not None:
            self._copying = None
            await copying
        if self._was_unmasked:
            self.open()
        self._was_unmasked = True
        return await self._growing()

    async def delete_vectors(self) -> None:
        """Have all vectors removed, by what was begun already if that comes to its end."""
        removing, self._removing = self._removing, None
        await (removing or self._remove_vectors())

    async def _remove_vectors(self) -> None:
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

    async def _vector_of(self, client: int) -> Path:
        try:
            return await self._services.objects.fetch(self.vector(client))
        except KeyError as error:
            raise DamagedAtRest(self._update_of(client)) from error

    async def _check_rest(self, client: int, digests: Sequence[str]) -> None:
        """Raise DamagedAtRest unless the first segments of a vector have these digests."""

        def digest_of(path: Path) -> str:
            return joint_digest(segment_digests(path, len(digests)))

        what = self._update_of(client)
        await intact(self._services.objects, self.vector(client), what, joint_digest(digests), digest_of)

    def _update_of(self, client: int) -> str:
        return f"the update of {self._services.names[client]} in exchange {self._exchange}"

    async def _intact(self, segment: Segment) -> Path:
        what = f"the sum of exchange {self._exchange}"
        return await intact(self._services.objects, segment.key, what, segment.sha256, sha256_file)

    @contextmanager
    def _measured(self) -> Iterator[None]:
        span = self._services.traces.span("fold", self._run, self._exchange)
        with span, self._services.metrics.fold_seconds.time():
            yield

    async def _accumulate(self, file: SumFile, path: Path, *, start: int | None = None) -> None:
        try:
            await in_thread(file.add, path, threads=self._services.threads, start=start)
        except (OSError, FedcoreError) as error:
            raise RoundFailed(f"a vector could not be added to the sum: {error}") from error
