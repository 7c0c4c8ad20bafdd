"""What may happen to a federation: a function for each kind of kill and fault, which ends when the fault does."""

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

from benchmarks.chaos_clients import Log, Place
from benchmarks.chaos_links import Link
from benchmarks.chaos_servers import Server
from benchmarks.chaos_storage import DATABASE, Storage

FREEZE_SECONDS: Final = (1.0, 15.0)
"""Shorter than the lease, and longer."""
LINE_SECONDS: Final = (0.5, 8.0)
STORAGE_SECONDS: Final = (2.0, 12.0)
SLOW_BYTES: Final = 20_000.0
FREE_BYTES: Final = 16 << 20
"""Of a full disk: less than a server keeps in reserve."""
DISK: Final = "512m"
CLOCK_SECONDS: Final = (-7200.0, -120.0, 120.0, 7200.0)
RESTORE_SECONDS: Final = 30.0
"""In which clients that know more than a backup say so: the time until all have joined again, at the most."""
KILL_SERVER: Final = "killed-server"
KILL_APP: Final = "killed-app"
FLIP: Final = "flipped-bits"
FORK: Final = "transcript-fork"
GOES_ON: Final = ("connected", "exchanged with", "masked and sent")
"""Of a client's log: what it says after it has accepted a transcript, be it at a join or in an exchange."""


@dataclass(slots=True)
class Target:
    """What can be hurt, and what was done to it. disk: that of the only server's data, None if it has none of its own.

    runs: the kind of run that is under way.
    """

    servers: list[Server]
    links: list[Link]
    storage: Storage
    disk: Path | None
    clients: tuple[Path, ...]
    """Their kits' folders."""
    log: Log
    runs: str = ""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By kind of run and kind of fault, kills among them."""
    silence: dict[str, float] = field(default_factory=dict)
    """By kind: the longest time without an accepted message from the beginning of a fault on."""
    deaths: int = 0
    """How often a server died that may have led a run."""
    flips: set[Place] = field(default_factory=set)
    """Exchanges of which an update was changed that was needed still."""
    restores: int = 0
    """How often a backup was put in place."""
    restores_over: int = 0
    """After how many of these the servers serve what they go on with: what is submitted before may be unknown."""

    async def inflict(self, kind: str, patience: float) -> None:
        """One fault, and the time until a message is accepted again, `patience` seconds at most."""
        began, runs = time.monotonic(), self.runs
        if not await KINDS[kind](self):
            return
        self.counts[runs, kind] += 1
        ended = time.monotonic()
        while self.log.last_message < ended and time.monotonic() < ended + patience:  # noqa: ASYNC110 - the log has no event
            await asyncio.sleep(0.05)
        self.silence[kind] = max(self.silence.get(kind, 0.0), self.log.longest_silence(began))

    def possible(self, kind: str) -> bool:
        """Whether a kind of fault can happen here."""
        shared = self.storage.cluster is not None
        return {"full-disk": self.disk is not None, "locked-database": not shared}.get(kind, True)

    @property
    def kills(self) -> int:
        """How many there were."""
        return sum(number for (_, kind), number in self.counts.items() if kind in KILLS)

    @property
    def faults(self) -> int:
        """How many other than kills there were."""
        return self.counts.total() - self.kills

    def kill_all(self) -> None:
        """SIGKILL to all servers."""
        self.deaths += 1
        for server in self.servers:
            server.kill()

    @property
    def is_forked(self) -> bool:
        """Whether a client refuses the servers' transcript since a backup was put back that is older than it knew."""
        return any(text.rfind(FORK) > max(map(text.rfind, GOES_ON)) for text in map(_log_of, self.clients))

    async def stop_all(self) -> None:
        """End all servers as their owner would."""
        for server in self.servers:
            await asyncio.to_thread(server.stop)

    async def start_all(self) -> None:
        """Start all servers; returns once they listen."""
        for server in self.servers:
            server.start()
        for server in self.servers:
            await server.ready()


async def _kill_server(target: Target) -> bool:
    server = random.choice(target.servers)
    target.deaths += 1
    server.kill()
    server.start()
    await server.ready()
    return True


async def _kill_app(target: Target) -> bool:
    return random.choice(target.servers).signal_app(signal.SIGKILL)


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
        with contextlib.closing(
            sqlite3.connect(target.storage.data / DATABASE, timeout=30, isolation_level=None)
        ) as other:
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
    """Two bits of an update that was accepted, and is needed still, change while the servers are down."""
    deadline = time.monotonic() + 20
    while not _needed(target.storage) and time.monotonic() < deadline:  # noqa: ASYNC110 - the disk has no event
        await asyncio.sleep(0.02)
    target.kill_all()
    updates = _needed(target.storage)  # of which the servers may have closed an exchange meanwhile
    if updates:
        path = random.choice(updates)
        content = bytearray(path.read_bytes())
        for place in random.sample(range(len(content)), 2):
            content[place] ^= 1 << random.randrange(8)
        path.write_bytes(content)
        *_, run, _, exchange, _, _ = path.parts
        target.flips.add((run, int(exchange)))
    await target.start_all()
    return bool(updates)


def _needed(storage: Storage) -> list[Path]:
    """Updates of secure exchanges, and replies of plain ones, that a server reads again when it starts."""
    files = [path for name in ("updates", "replies") for path in storage.data.glob(f"runs/*/exchanges/*/{name}/*")]
    return [path for path in files if path.name.isdecimal() and storage.is_needed(path)]


async def _set_clock(target: Target) -> bool:
    """A server's clock jumps, while it runs, and is set right after a while."""
    server = random.choice(target.servers)
    server.set_clock(random.choice(CLOCK_SECONDS))
    await asyncio.sleep(random.uniform(*STORAGE_SECONDS))
    server.set_clock(0.0)
    return True


async def _upgrade(target: Target) -> bool:
    """In the order of docs/howto/operating.md, to the version that is there already."""
    await target.stop_all()
    await asyncio.to_thread(target.servers[0].upgrade)
    await target.start_all()
    return True


async def _restore(target: Target) -> bool:
    """A backup is put back; if clients are beyond it, the newest one follows, as docs/howto/operating.md says."""
    storage = target.storage
    backup = await asyncio.to_thread(storage.back_up)
    await asyncio.sleep(random.uniform(*LINE_SECONDS))
    await target.stop_all()
    newest = await asyncio.to_thread(storage.back_up)
    await asyncio.to_thread(storage.restore, backup)
    target.restores += 1
    began = [_log_of(kit) for kit in target.clients]
    await target.start_all()
    deadline = time.monotonic() + RESTORE_SECONDS
    while time.monotonic() < deadline:
        news = [_log_of(kit)[len(before) :] for kit, before in zip(target.clients, began, strict=True)]
        if any(FORK in text for text in news):
            await target.stop_all()
            await asyncio.to_thread(storage.restore, newest)
            await target.start_all()
            break
        if all("join" in text for text in news):
            break
        await asyncio.sleep(0.2)
    target.restores_over = target.restores
    for copy in (backup, newest):
        shutil.rmtree(copy)
    return True


def _log_of(kit: Path) -> str:
    return (kit / "log").read_text(encoding="utf-8")


KILLS: Final = (KILL_SERVER, KILL_APP)
KINDS: Final[Mapping[str, Callable[[Target], Awaitable[bool]]]] = {
    KILL_SERVER: _kill_server,
    KILL_APP: _kill_app,
    "frozen-server": _freeze_server,
    "frozen-app": _freeze_app,
    "cut-link": _cut_link,
    "stalled-link": _stall_link,
    "slow-link": _slow_link,
    "reset-link": _reset_link,
    "locked-database": _lock_database,
    "full-disk": _fill_disk,
    FLIP: _flip_bits,
    "clock": _set_clock,
    "upgrade": _upgrade,
    "restore": _restore,
}
"""By name; each says whether it came to it."""
FAULTS: Final = tuple(kind for kind in KINDS if kind not in KILLS)


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
