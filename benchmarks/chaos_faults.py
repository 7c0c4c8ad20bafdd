"""What may happen to a federation besides a kill: a function for each kind of fault, which ends when the fault does."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.chaos_clients import Log
from benchmarks.chaos_links import Link
from benchmarks.chaos_servers import Server

FREEZE_SECONDS: Final = (1.0, 15.0)
"""Shorter than the lease, and longer."""
LINE_SECONDS: Final = (0.5, 8.0)
STORAGE_SECONDS: Final = (2.0, 12.0)
SLOW_BYTES: Final = 20_000.0
FREE_BYTES: Final = 16 << 20
"""Of a full disk: less than a server keeps in reserve."""
DISK: Final = "512m"
DATABASE: Final = "server.sqlite3"


@dataclass(slots=True)
class Target:
    """What can be hurt. disk: that of the only server's data, "" if it has none of its own. shared: of all servers."""

    servers: list[Server]
    links: list[Link]
    data: Path
    disk: Path | None
    shared: bool
    faults: Counter[str] = field(default_factory=Counter)
    silence: dict[str, float] = field(default_factory=dict)
    """By kind: the longest time without an accepted message from the beginning of a fault on."""

    async def inflict(self, kind: str, log: Log, patience: float) -> None:
        """One fault, and the time until a message is accepted again, `patience` seconds at most."""
        began = time.monotonic()
        if not await KINDS[kind](self):
            return
        self.faults[kind] += 1
        ended = time.monotonic()
        while log.last_message < ended and time.monotonic() < ended + patience:  # noqa: ASYNC110 - the log has no event
            await asyncio.sleep(0.05)
        self.silence[kind] = max(self.silence.get(kind, 0.0), log.longest_silence(began))

    def possible(self, kind: str) -> bool:
        """Whether a kind of fault can happen here."""
        return {"full-disk": self.disk is not None, "locked-database": not self.shared}.get(kind, True)


async def _freeze_server(target: Target) -> bool:
    """SIGSTOP, as a machine that swaps or migrates."""
    server = random.choice(target.servers)
    server.send(signal.SIGSTOP)
    await asyncio.sleep(random.uniform(*FREEZE_SECONDS))
    server.send(signal.SIGCONT)
    return True


async def _freeze_app(target: Target) -> bool:
    server = random.choice(target.servers)
    if not server.signal_app(signal.SIGSTOP):
        return False
    await asyncio.sleep(random.uniform(*LINE_SECONDS))
    return server.signal_app(signal.SIGCONT)


async def _cut_link(target: Target) -> bool:
    await random.choice(target.links).cut(random.uniform(*LINE_SECONDS))
    return True


async def _stall_link(target: Target) -> bool:
    await random.choice(target.links).stall(random.uniform(*LINE_SECONDS))
    return True


async def _slow_link(target: Target) -> bool:
    await random.choice(target.links).slow_down(random.uniform(*LINE_SECONDS), SLOW_BYTES)
    return True


async def _reset_link(target: Target) -> bool:
    random.choice(target.links).reset()
    return True


async def _lock_database(target: Target) -> bool:
    """Another program has the database to itself."""

    def lock() -> None:
        with contextlib.closing(sqlite3.connect(target.data / DATABASE, timeout=30, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            time.sleep(random.uniform(*STORAGE_SECONDS))
            other.execute("ROLLBACK")

    await asyncio.to_thread(lock)
    return True


async def _fill_disk(target: Target) -> bool:
    assert target.disk is not None, "the kind is not possible here"
    ballast = target.disk / "ballast"
    with ballast.open("wb") as file, contextlib.suppress(OSError):
        while shutil.disk_usage(target.disk).free > FREE_BYTES:
            file.write(bytes(1 << 20))
    await asyncio.sleep(random.uniform(*STORAGE_SECONDS))
    ballast.unlink()
    return True


async def _flip_bits(target: Target) -> bool:
    """Two bits of an update that was accepted change while the servers are down."""
    deadline = time.monotonic() + 20
    while not _updates(target.data) and time.monotonic() < deadline:  # noqa: ASYNC110 - the disk has no event
        await asyncio.sleep(0.01)
    for server in target.servers:
        server.kill()
    updates = _updates(target.data)
    if updates:
        path = random.choice(updates)
        content = bytearray(path.read_bytes())
        for place in random.sample(range(len(content)), 2):
            content[place] ^= 1 << random.randrange(8)
        path.write_bytes(content)
    for server in target.servers:
        server.start()
    for server in target.servers:
        await server.ready()
    return bool(updates)


def _updates(data: Path) -> list[Path]:
    return [path for path in data.glob("runs/*/exchanges/*/updates/*") if not path.name.startswith(".")]


FLIP: Final = "flipped-bits"
KINDS: Final[Mapping[str, Callable[[Target], Awaitable[bool]]]] = {
    "frozen-server": _freeze_server,
    "frozen-app": _freeze_app,
    "cut-link": _cut_link,
    "stalled-link": _stall_link,
    "slow-link": _slow_link,
    "reset-link": _reset_link,
    "locked-database": _lock_database,
    "full-disk": _fill_disk,
    FLIP: _flip_bits,
}
"""By name; each says whether it came to it."""


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A file system in memory that can be filled; None if this process may not mount one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
