"""Rosters of the federation: the one in use, earlier ones, and those published during an exchange."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedcore.federation import Member, Roster
from fedcore.federation.chain import chain_text, successors
from fedcore.federation.files import replace_file
from server_app.storage.store import Store

log = logging.getLogger("fedcore.server")


class Rosters:
    """Hands out the roster in use, and takes new ones between exchanges.

    Its properties describe the roster in use; an exchange asks for the roster itself and keeps it.

    chain
        All versions, verified.
    authority
        Raw Ed25519 key, 32 bytes.
    path
        The file that stores the chain.
    """

    def __init__(self, chain: Sequence[Roster], *, authority: bytes, path: Path) -> None:
        self._chain = tuple(chain)
        self.authority = authority
        self._path = path
        self._current = self._chain[-1]
        self._hashed = (self._current, self._current.hash())
        self._open = 0
        self._store: Store | None = None
        self._publishing = asyncio.Lock()

    @property
    def current(self) -> Roster:
        """The roster in use."""
        return self._current

    @property
    def sha256(self) -> bytes:
        """`hash()` of the roster in use, made once: thousands of members take milliseconds, and all of them ask."""
        if self._hashed[0] is not self._current:
            self._hashed = (self._current, self._current.hash())
        return self._hashed[1]

    @property
    def newest(self) -> Roster:
        """The last one that was published; it comes into use when the open exchange ends."""
        return self._chain[-1]

    @property
    def federation(self) -> str:
        """The federation's name."""
        return self._current.federation

    @property
    def members(self) -> tuple[Member, ...]:
        """Who belongs to the federation."""
        return self._current.members

    @property
    def keys(self) -> Mapping[int, bytes]:
        """Client id -> raw Ed25519 key, 32 bytes, of members."""
        return self._current.keys

    @property
    def names(self) -> Mapping[int, str]:
        """Client id -> name, of members and former members."""
        return self._current.names

    def after(self, version: int) -> list[Roster]:
        """The rosters after `version`, up to the one in use."""
        return [roster for roster in self._chain if version < roster.version <= self._current.version]

    @contextmanager
    def hold(self, version: int | None = None) -> Iterator[Roster]:
        """The roster of an exchange, which stays in use until the exchange has ended.

        version
            Of an exchange that began under it in an earlier process; None for the roster in use.
        """
        if version is not None and self._open == 0:
            self._current = next(roster for roster in self._chain if roster.version == version)
        self._open += 1
        try:
            yield self._current
        finally:
            self._open -= 1
            self._use_newest()

    async def publish(self, texts: Sequence[str]) -> None:
        """Take rosters that follow the newest, durably; those that lead up to it change nothing.

        Raises ProtocolViolation, under a fixed name, for what is no successor: what counts is the authority's
        signature and the chain, not the sender. Raises StorageFull or EnvironmentFailure if they cannot be
        stored; then none of them is taken.
        """
        async with self._publishing:
            known = [roster.to_json() for roster in self._chain]
            fresh = [text for text in texts if text not in known]
            if not fresh and texts and texts[-1] != known[-1]:
                fresh = [texts[-1]]  # an older one as the last word is no news: it has to be refused
            following = successors(self.newest, fresh, self.authority)
            if self._store is not None:
                for roster in following:
                    await self._store.add_roster(roster.version, roster.to_json())
            await self._take(following)
            self._use_newest()

    async def share(self, store: Store) -> None:
        """Take the rosters that other servers of the federation published, and leave them those that are here.

        Raises ProtocolViolation if the database holds another chain than the authority signed.
        """
        async with self._publishing:
            self._store = store
            stored = await store.rosters_after(0)
            fresh = [text for version, text in sorted(stored.items()) if version > self.newest.version]
            await self._take(successors(self.newest, fresh, self.authority))
            for roster in self._chain:
                if roster.version not in stored:
                    await store.add_roster(roster.version, roster.to_json())
            self._use_newest()

    async def _take(self, following: Sequence[Roster]) -> None:
        if following:
            await asyncio.to_thread(replace_file, self._path, chain_text((*self._chain, *following)))
            self._chain += tuple(following)

    def _use_newest(self) -> None:
        if self._open == 0 and self.newest is not self._current:
            self._current = self.newest
            log.info("roster %d is in use: %d members", self._current.version, len(self._current.members))
