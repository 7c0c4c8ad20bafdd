"""Members without processes of their own: real keys, signatures and protocol over one small HTTP client each.

A benchmark of the server wants thousands of clients whose own work costs little. These join, poll and take part as the
agent does, in one event loop of another process; what they would train is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fedcore.comparison.local_federation import free_port
from fedcore.federation import ClientKit, FederationFolder, Policy, Roster, provision
from fedcore.federation import Member as Listed
from fedcore.federation.chain import chain_text
from fedcore.federation.files import private_pem
from fedcore.flower.app import AppBundle
from fedcore.system.concurrency import end
from fedcore.wire.presence import HeartbeatIn
from tests.support.members import Local, Member

NAME = "serving"
JOINING_AT_ONCE = 64
HEARTBEAT_SECONDS = 3.0
"""What servers ask of agents."""


class SmallHttp:
    """As much of an httpx client as a `Member` uses, over one connection and for a tenth of the work.

    turns: what is done with an answer is done by one member in each turn of the event loop. Hundreds whose answers come
    at once would else be at work for half a minute in which nobody of the crowd is heard.
    """

    def __init__(self, url: str, tls: ssl.SSLContext, turns: asyncio.Lock) -> None:
        self._turns = turns
        self._url = url
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 443)
        self._tls = tls
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def request(
        self, method: str, path: str, *, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """One request and its whole answer; again, as agents do, where the connection ended meanwhile."""
        while True:
            try:
                return await self._request(method, path, content, headers or {})
            except (OSError, EOFError):
                self.close()
                await asyncio.sleep(0.2)

    async def _request(self, method: str, path: str, content: bytes, headers: Mapping[str, str]) -> httpx.Response:
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address, ssl=self._tls, limit=1 << 20)
        reader, writer = self._streams
        writer.write(head(method, path, len(content), headers) + content)
        await writer.drain()
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines[1:] if line)
        body = await reader.readexactly(int(fields.get("content-length", "0")))
        if fields.get("connection") == "close":
            self.close()
        async with self._turns:
            await asyncio.sleep(0)
        return httpx.Response(int(lines[0].split(" ")[1]), headers=fields, content=body)

    def another(self) -> SmallHttp:
        """One over a connection of its own."""
        return SmallHttp(self._url, self._tls, asyncio.Lock())

    def close(self) -> None:
        """Let the connection go."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


def head(method: str, path: str, length: int, fields: Mapping[str, str]) -> bytes:
    """The head of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: server", f"Content-Length: {length}"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in fields.items()), "", ""]).encode("ascii")


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """A federation with many members, whose keys follow from their numbers."""

    folder: FederationFolder
    count: int

    @classmethod
    def create(cls, folder: Path, count: int) -> Self:
        """Provision one kit, and put all members on the roster: each of 5,000 kits would hold a copy of it."""
        policy = Policy.own(count, allow_plain=True)
        made = provision(folder, name=NAME, clients=1, now=datetime.now(UTC), port=free_port(), policy=policy)
        authority = load_pem_private_key((made.folder / "authority" / "authority.key").read_bytes(), None)
        if not isinstance(authority, Ed25519PrivateKey):
            raise TypeError("the authority signs with Ed25519")
        listed = [
            Listed(id=number, name=f"client-{number}", public_key=_key(number).public_key().public_bytes_raw())
            for number in range(1, count + 1)
        ]
        roster = Roster.sign(NAME, listed, authority)
        (made.server / "rosters.json").write_text(chain_text([roster]), encoding="utf-8")
        (made.clients[0] / "roster.json").write_text(roster.to_json(), encoding="utf-8")
        (made.clients[0] / "identity.key").write_bytes(private_pem(_key(1)))
        return cls(folder=made, count=count)

    @contextlib.contextmanager
    def members(self, scratch: Path) -> Iterator[list[Member]]:
        """All of them, each with a connection of its own that it opens when it first asks."""
        kit = ClientKit.load(self.folder.clients[0])
        tls = ssl.create_default_context(cafile=str(self.folder.server / "ca.crt"))
        turns = asyncio.Lock()
        clients = [SmallHttp(self.folder.server_url, tls, turns) for _ in range(self.count)]
        try:
            yield [
                _idle_member(
                    dataclasses.replace(kit, client_id=number, name=f"client-{number}", identity=_key(number)),
                    http,
                    scratch,
                )
                for number, http in enumerate(clients, start=1)
            ]
        finally:
            for client in clients:
                client.close()


def _idle_member(kit: ClientKit, http: SmallHttp, scratch: Path) -> Member:
    member = Member(kit, http, scratch)  # type: ignore[arg-type]
    member.local = Local(by=0.125, examples=1, metrics={})
    return member


async def join(members: list[Member], app: Path) -> None:
    """All join, so many at once."""
    places, bundle = asyncio.Semaphore(JOINING_AT_ONCE), AppBundle.from_folder(app)

    async def one(member: Member) -> None:
        async with places:
            await member.join(bundle.sha256)

    await asyncio.gather(*map(one, members))


async def take_part(member: Member) -> None:
    """What an agent does: one poll after the other, and all steps of an exchange that it is asked to take part in."""
    while True:
        with contextlib.suppress(AssertionError):  # nothing came from all polls of one turn, or the exchange had ended
            await member.enter()
            async with _signs_of_life(member):
                await member.secure()


@contextlib.asynccontextmanager
async def _signs_of_life(member: Member) -> AsyncIterator[None]:
    """Heartbeats during the steps, over a connection of their own: all members of an exchange share one processor."""
    http = member.http.another()  # type: ignore[attr-defined]
    beside = Member(member.kit, http, member.base)
    task = member.task

    async def beat() -> None:
        while task is not None:
            with contextlib.suppress(AssertionError):
                await beside.ask("POST", "/v1/heartbeat", HeartbeatIn(run=task.run, exchange=task.exchange))
            await asyncio.sleep(HEARTBEAT_SECONDS)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        await end(beating)
        http.close()


def _key(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"member {number}".encode()).digest())
