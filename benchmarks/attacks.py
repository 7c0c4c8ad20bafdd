"""What strangers do to a server while a run goes on: ten attacks without a key, and the seconds of a round meanwhile.

    python benchmarks/attacks.py [--quick] [--json]

One process attacks over TLS, at a low priority, so that what counts is what the server spends on it. Runs of the same
small model go on undisturbed before and after each attack; the figures are ratios to these. The server is a real one
with the limits that it has by default.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import multiprocessing
import os
import ssl
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Final
from urllib.parse import urlsplit

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import psutil
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.common import APPS, Figure, Report, Table, parser, run, say, sized
from benchmarks.live import LiveFederation, live_federation
from benchmarks.resident import peak_resident_bytes, reset_peak, resident_bytes
from fedcore.errors import EnvironmentFailure
from fedcore.federation import OperatorKit
from fedcore.wire.signing import sign_headers

CLIENTS: Final = 4
MIB: Final = float(1 << 20)
ROUND_AIM: Final = 1.2
MEMORY_AIM: Final = 128.0
WARM_SECONDS: Final = 3.0
"""For an attack to open its connections before the run begins under it."""
_PAUSE: Final = 0.05
_GET: Final = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
_POST: Final = b"POST /v1/join HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
_EMPTY: Final = hashlib.sha256(b"").digest()


@dataclass(slots=True)
class Wire:
    """One connection of the attacker. seen: statuses, connections and how they ended, of all connections."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    seen: Counter[str]

    async def send(self, text: bytes) -> None:
        """Write as fast as the server takes it."""
        if self.writer.transport.is_closing():
            raise ConnectionResetError
        self.writer.write(text)
        await self.writer.drain()
        await asyncio.sleep(0)  # drain alone lets nobody else run, not even to see the end of the connection

    async def listen(self) -> None:
        """Note all answers until the server closes."""
        while text := await self.reader.read(1 << 16):
            for line in text.split(b"\r\n"):
                if line.startswith(b"HTTP/1.1 "):
                    self.seen[line[9:12].decode("ascii")] += 1


Deed = Callable[[Wire], Awaitable[None]]


async def hold(wire: Wire) -> None:
    """Nothing at all."""
    await wire.listen()


async def slow_head(wire: Wire) -> None:
    """A head, one byte a second."""
    await trickle(wire, _GET + b"A: ", b"a")


async def slow_body(wire: Wire) -> None:
    """A body, one byte a second."""
    await trickle(wire, _POST + b"Content-Length: 1000\r\n\r\n", b" ")


async def stalled_body(wire: Wire) -> None:
    """The first bytes of a body."""
    await wire.send(_POST + b"Content-Length: 1000\r\n\r\n{")
    await wire.listen()


async def trickle(wire: Wire, start: bytes, drop: bytes) -> None:
    """`start`, and then a drop a second."""

    async def drip() -> None:
        await wire.send(start)
        while True:
            await asyncio.sleep(1.0)
            await wire.send(drop)

    await beside(wire, drip())


async def large_head(wire: Wire) -> None:
    """One field of 4 MB."""
    await beside(wire, wire.send(_GET + b"A: " + b"a" * (4 << 20) + b"\r\n\r\n"))


async def many_fields(wire: Wire) -> None:
    """7,000 fields in less than 64 KiB, again and again."""
    request = _GET + b"".join(b"a: b\r\n" for _ in range(7000)) + b"\r\n"

    async def repeat() -> None:
        while True:
            await wire.send(request)

    await beside(wire, repeat())


async def large_body(wire: Wire) -> None:
    """400 MB where a message has some kilobytes."""

    async def pour() -> None:
        await wire.send(_POST + b"Content-Length: 400000000\r\n\r\n")
        for _ in range(400):
            await wire.send(bytes(1_000_000))

    await beside(wire, pour())


async def endless_chunks(wire: Wire) -> None:
    """Chunks of one byte without an end."""

    async def pour() -> None:
        await wire.send(_POST + b"Transfer-Encoding: chunked\r\n\r\n")
        while True:
            await wire.send(b"1\r\nx\r\n" * 1000)

    await beside(wire, pour())


async def unread(wire: Wire) -> None:
    """Requests one after the other, none of whose answers is read."""
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
    while True:
        await wire.send((_GET + b"\r\n") * 1000)


_KEY: Final = Ed25519PrivateKey.from_private_bytes(bytes(32))
_NONCES: Final = count()


async def wrong_signature(wire: Wire) -> None:
    """A well-formed signature of a member by another key, once a second."""
    path = "/v1/task?wait=25"

    async def repeat() -> None:
        while True:
            signed = sign_headers(
                "GET", path, _EMPTY, key_id="client-1", key=_KEY, now=int(time.time()), nonce=f"attack-{next(_NONCES)}"
            )
            fields = "".join(f"{name}: {value}\r\n" for name, value in signed.items())
            await wire.send(f"GET {path} HTTP/1.1\r\nHost: x\r\n{fields}\r\n".encode("ascii"))
            await asyncio.sleep(1.0)

    await beside(wire, repeat())


async def beside(wire: Wire, work: Awaitable[None]) -> None:
    """Do something while the answers are noted; it ends with the connection."""
    task = asyncio.ensure_future(work)
    try:
        await wire.listen()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError, ssl.SSLError):
            await task


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """What is done on each of so many connections; each is opened again as soon as it ends."""

    name: str
    connections: int
    deed: Deed


ATTACKS: Final = (
    Attack(name="idle", connections=1000, deed=hold),
    Attack(name="slow head", connections=200, deed=slow_head),
    Attack(name="slow body", connections=50, deed=slow_body),
    Attack(name="stalled body", connections=50, deed=stalled_body),
    Attack(name="4 MB head", connections=4, deed=large_head),
    Attack(name="7,000 fields", connections=4, deed=many_fields),
    Attack(name="400 MB body", connections=4, deed=large_body),
    Attack(name="endless chunks", connections=4, deed=endless_chunks),
    Attack(name="unread pipelining", connections=40, deed=unread),
    Attack(name="wrong signatures", connections=20, deed=wrong_signature),
)


async def _attack(attack: Attack, url: str, ca_file: Path, stop: asyncio.Event, seen: Counter[str]) -> None:
    parts = urlsplit(url)
    tls = ssl.create_default_context(cafile=str(ca_file))

    async def keep_on() -> None:
        while True:
            with contextlib.suppress(OSError, ssl.SSLError, EOFError):
                reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=tls)
                seen["connections"] += 1
                try:
                    await attack.deed(Wire(reader, writer, seen))
                finally:
                    writer.transport.abort()
            seen["ended by the server"] += 1
            await asyncio.sleep(_PAUSE)

    tasks = [asyncio.create_task(keep_on()) for _ in range(attack.connections)]
    await stop.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _attacker(attack: Attack, url: str, ca_file: Path, pipe: Connection) -> None:
    """The attacking process: until something comes through the pipe, which then gets what was seen."""
    os.nice(10)
    seen: Counter[str] = Counter()

    async def main() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe.fileno(), stop.set)
        await _attack(attack, url, ca_file, stop, seen)

    asyncio.run(main())
    pipe.send(seen)


@contextlib.contextmanager
def under(attack: Attack, kit: OperatorKit) -> Iterator[Counter[str]]:
    """The attack goes on in the block; what was seen of it is there afterwards."""
    seen: Counter[str] = Counter()
    ours, theirs = multiprocessing.Pipe()
    arguments = (attack, kit.servers[0], kit.ca_file, theirs)
    process = multiprocessing.get_context("fork").Process(target=_attacker, args=arguments)
    process.start()
    try:
        time.sleep(WARM_SECONDS)
        yield seen
        ours.send(None)
        if not ours.poll(60.0):
            raise EnvironmentFailure(f"the attack {attack.name!r} does not end")
        seen.update(ours.recv())
    finally:
        process.terminate()
        process.join()


@dataclass(slots=True, kw_only=True)
class Measured:
    """Seconds of rounds; peak: what the server grew by meanwhile, bytes; cpu: its share of a core."""

    name: str
    seconds: list[float] = field(default_factory=list)
    peak: int = 0
    cpu: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)


def main() -> int:
    """The command line."""
    options = parser("What strangers do to a server while a run goes on.")
    options.add_argument("--only", default="", help="attacks whose names have this in them")
    options.add_argument("--rounds", type=int, help="rounds of a run, the first of which does not count")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """Each attack between two undisturbed runs."""
    rounds = arguments.rounds or sized(arguments, smallest=2, quick=4, whole=9)
    only = [attack for attack in ATTACKS if arguments.only in attack.name][: 1 if arguments.smallest else None]
    calm, attacked = Measured(name="undisturbed"), []
    with live_federation(APPS / "noop", clients=CLIENTS) as federation:
        kit = OperatorKit.load(federation.operator_folder)
        _rounds(federation, rounds, calm)
        for attack in only:
            _rounds(federation, rounds, calm)
            measured = Measured(name=attack.name)
            with under(attack, kit) as seen:
                _rounds(federation, rounds, measured)
            measured.seen = seen
            attacked.append(measured)
            say(
                f"{attack.name}: {median(measured.seconds):.2f} s, undisturbed {median(calm.seconds):.2f}; {dict(seen)}"
            )
    return report(calm, attacked)


def _rounds(federation: LiveFederation, rounds: int, measured: Measured) -> None:
    server = psutil.Process(federation.server_pid)
    reset_peak(federation.server_pid)
    before, cpu, started = resident_bytes(federation.server_pid), _cpu(server), time.monotonic()
    record = federation.run(run_config={"parameters": 10_000, "num-server-rounds": rounds}, settings={})
    measured.cpu = (_cpu(server) - cpu) / (time.monotonic() - started)
    measured.peak = max(measured.peak, peak_resident_bytes(federation.server_pid) - before)
    training = [end for exchange, end in zip(record.exchanges, record.ends, strict=True) if exchange.trains]
    measured.seconds += [after - start for start, after in pairwise(training)]


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def report(calm: Measured, attacked: Sequence[Measured]) -> Report:
    """One figure and one row an attack."""
    usual = median(calm.seconds)
    figures = [
        Figure(
            name=f"round_seconds_{one.name.replace(' ', '_').replace(',', '')}",
            value=median(one.seconds) / usual,
            aim=ROUND_AIM,
        )
        for one in attacked
    ]
    figures.append(
        Figure(name="server_growth", unit="MiB", value=max(one.peak for one in attacked) / MIB, aim=MEMORY_AIM)
    )
    rows = tuple(
        (
            one.name,
            f"{median(one.seconds):.2f}",
            f"{one.cpu:.2f}",
            f"{one.peak / MIB:.0f}",
            ", ".join(f"{name}: {number}" for name, number in sorted(one.seen.items())) or "-",
        )
        for one in (calm, *attacked)
    )
    header = ("attack", "s a round", "cores of the server", "MiB grown", "what the attacker saw")
    return Report(
        benchmark="attacks",
        figures=tuple(figures),
        tables=(Table(title="A round of 4 clients meanwhile", header=header, rows=rows),),
        notes=(
            "the attacker shares the machine's cores; its own work is part of what a round takes here",
            "numbers of three digits are HTTP statuses",
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
