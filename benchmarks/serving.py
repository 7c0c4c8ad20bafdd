"""What one server carries: bytes a second next to raw sockets, and hundreds or thousands of members.

    python benchmarks/serving.py [--quick] [--json]

Eight members send their masked updates to a real server at once, and fetch the model at once, over TLS; the floor is a
program that reads and writes as many bytes over sockets and does nothing with them, with TLS and without, in the same
run. Then 100, 1,000 and 5,000 members are connected to one server: real signatures, polls and protocol, in one process
whose own work is not counted (`serving_members.py`), but shares the machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import multiprocessing
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import psutil

from benchmarks.common import APPS, Figure, Report, Table, parser, quiet_environment, run, say, sized
from benchmarks.resident import peak_resident_bytes, reset_peak, resident_bytes
from benchmarks.serving_members import Crowd, head, join, take_part
from client_app.operator.client import OperatorClient
from client_app.operator.run_submission import make_submission
from fedcore.comparison.local_federation import FEDCORE
from fedcore.errors import EnvironmentFailure, RunFailed
from fedcore.federation import OperatorKit
from fedcore.system.workers.child_processes import ChildProcesses
from fedcore.wire.events import ExchangeDone
from fedcore.wire.operator import RunStatus
from tests.support.members import Member, parts_of

AT_ONCE: Final = 8
COHORT: Final = 100
FLOAT32_BYTES: Final = 4
MIB: Final = float(1 << 20)
FEW: Final = 1000
PATIENCE: Final = 300.0
APP: Final = APPS / "noop"
Spot = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Bytes a second of all together, upwards and downwards."""

    name: str
    up: float
    down: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a number of members cost the server. core: share of one while nothing happens; memory: bytes of a member.

    rounds: seconds of the rounds with `cohort` of them.
    """

    members: int
    cohort: int
    joins_a_second: float
    core: float
    memory: float
    rounds: list[float]


def main() -> int:
    """The command line."""
    options = parser("What one server carries.")
    options.add_argument("--members", type=int, nargs="*", help="how many are connected (default 100 1000 5000)")
    options.add_argument("--parameters", type=int, help="size of the model that is sent (default 4e6)")
    options.add_argument("--idle", type=float, help="seconds in which nothing happens (default 60)")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """The transfers, and then each number of members with a server of its own."""
    numbers = arguments.members
    if numbers is None:
        numbers = sized(arguments, smallest=[4], quick=[100], whole=[100, 1000, 5000])
    parameters = arguments.parameters or sized(arguments, smallest=10**4, quick=10**6, whole=4 * 10**6)
    idle = arguments.idle or sized(arguments, smallest=0.5, quick=35.0, whole=60.0)
    with _running(AT_ONCE) as site:
        up_bytes, down_bytes, ours, peak = asyncio.run(_transfer(site, parameters))
        tls = site.crowd.folder.server / "server.crt", site.crowd.folder.server / "server.key"
        floors = [_raw("raw sockets, TLS", up_bytes, down_bytes, tls), _raw("raw sockets", up_bytes, down_bytes, None)]
    served = []
    for number in numbers:
        with _running(number) as site:
            served.append(asyncio.run(_serve(site, idle)))
    return report([ours, *floors], peak / (parameters * FLOAT32_BYTES), served)


# --- a server and its members ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A real server process for a crowd."""

    crowd: Crowd
    scratch: Path
    pid: int

    def submit(self, parameters: int, rounds: int, cohort: int, *, liveness: float = 15.0) -> list[float]:
        """Have one run led; the seconds of its rounds but the first. Raises RunFailed.

        liveness: how long a member may be silent; as by default, where members send signs of life.
        """
        share = min(cohort, self.crowd.count) / self.crowd.count
        config = {
            "parameters": parameters, "num-server-rounds": rounds, "min-nodes": cohort, "fraction-train": share,
            "tensors": 1,
        }  # fmt: skip
        # Fields must hold a sum of the whole roster, however few of it are asked.
        settings = {
            "min-clients": cohort, "train-seconds": PATIENCE, "step-seconds": PATIENCE,
            "liveness-seconds": liveness, "field-bits": 32 if self.crowd.count > FEW else 16,
        }  # fmt: skip
        ends: list[float] = []
        with OperatorClient(OperatorKit.load(self.crowd.folder.operator)) as operator:
            submitted = state = operator.submit(make_submission(APP, config, settings))
            for state in operator.follow(submitted.run):
                ends += [one.seconds for one in state.events if isinstance(one.event, ExchangeDone)]
        if state.status is not RunStatus.FINISHED:
            raise RunFailed(f"the run {state.status.value}: {state.reason}")
        return [after - before for before, after in pairwise(ends)]


@contextlib.contextmanager
def _running(members: int) -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="fedcore-benchmark-") as name:
        folder = Path(name)
        say(f"{members} members: a roster and a server")
        crowd = Crowd.create(folder / "federation", members)
        with ChildProcesses(folder / "logs", quiet_environment()) as group:
            ready = folder / "ready"
            command = [*FEDCORE, "server", "--federation", str(crowd.folder.folder), "--ready-file", str(ready)]
            server = group.start("server", command)
            deadline = time.monotonic() + PATIENCE
            while not ready.exists():
                group.check()
                if time.monotonic() > deadline:
                    raise EnvironmentFailure("the server does not start")
                time.sleep(0.1)
            yield Site(crowd=crowd, scratch=folder, pid=server.pid)


async def _serve(site: Site, idle: float) -> Served:
    before = resident_bytes(site.pid)
    count = site.crowd.count
    cohort = min(max(COHORT, count // 20 + 3), count)  # no fewer than policies allow beside those that may collude
    with site.crowd.members(site.scratch) as members:
        started = time.monotonic()
        await join(members, APP)
        joins = count / (time.monotonic() - started)
        tasks = [asyncio.create_task(take_part(member)) for member in members]
        await asyncio.sleep(3.0)
        cpu, started = _cpu(site.pid), time.monotonic()
        await asyncio.sleep(idle)
        core = (_cpu(site.pid) - cpu) / (time.monotonic() - started)
        memory = (resident_bytes(site.pid) - before) / count
        say(f"{count} members: {joins:.0f} joins a second, {core:.3f} of a core, {memory / 1024:.0f} KiB each")
        rounds = await asyncio.to_thread(site.submit, 100, 4, cohort)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return Served(members=count, cohort=cohort, joins_a_second=joins, core=core, memory=memory, rounds=rounds)


def _cpu(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


# --- transfers ------------------------------------------------------------------------------------------------------


async def _transfer(site: Site, parameters: int) -> tuple[int, int, Transfer, int]:
    """Bytes of one update and of one model, what the server makes of eight at once, and its peak above idle."""
    tls = ssl.create_default_context(cafile=str(site.crowd.folder.server / "ca.crt"))
    url = site.crowd.folder.server_url.removeprefix("https://").split(":")
    spot = url[0], int(url[1])
    with site.crowd.members(site.scratch) as members:
        await join(members, APP)
        idle = resident_bytes(site.pid)
        reset_peak(site.pid)
        leading = asyncio.create_task(asyncio.to_thread(site.submit, parameters, 1, AT_ONCE, liveness=PATIENCE))
        await asyncio.gather(*(member.enter() for member in members))
        for step in (Member.advertise, Member.share, Member.receive):
            await asyncio.gather(*map(step, members))
        size = members[0].task.model.size if members[0].task and members[0].task.model else 0
        down = await asyncio.to_thread(_at_once, spot, tls, [[_signed(m, "GET", "model", b"")] for m in members])
        vectors = [member.vector() for member in members]
        parts = [
            [_signed(m, "PUT", f"update/parts/{i}", part) for i, part in enumerate(parts_of(body))]
            for m, (body, _) in zip(members, vectors, strict=True)
        ]
        up = await asyncio.to_thread(_at_once, spot, tls, parts)
        await asyncio.gather(*(m.put("manifest", said) for m, (_, said) in zip(members, vectors, strict=True)))
        await asyncio.gather(*(member.sign() for member in members))
        await asyncio.gather(*(member.unmask() for member in members))
        await leading
    length = len(vectors[0][0])
    ours = Transfer(name="fedcore, TLS", up=AT_ONCE * length / up, down=AT_ONCE * size / down)
    say(f"{ours.up / 1e6:.0f} MB/s up, {ours.down / 1e6:.0f} MB/s down")
    return length, size, ours, peak_resident_bytes(site.pid) - idle


Question = tuple[bytes, bytes]
"""A head and a body."""


def _signed(member: Member, method: str, step: str, body: bytes) -> Question:
    path = member.at(step)
    fields = member.signed(method, path, digest=hashlib.sha256(body).digest())
    return head(method, path, len(body), {"Content-Type": "application/octet-stream", **fields}), body


def _at_once(spot: Spot, tls: ssl.SSLContext | None, questions: Sequence[Sequence[Question]]) -> float:
    """Seconds until all are answered: a connection, opened before, and a thread for each sequence."""
    connections = [_connect(spot, tls) for _ in questions]
    barrier = threading.Barrier(len(questions) + 1)

    def ask(connection: socket.socket, sequence: Sequence[Question]) -> None:
        barrier.wait()
        for start, body in sequence:
            connection.sendall(start)
            connection.sendall(body)
            _read_answer(connection)

    with ThreadPoolExecutor(len(questions)) as pool:
        asked = [pool.submit(ask, *each) for each in zip(connections, questions, strict=True)]
        barrier.wait()
        started = time.monotonic()
        for one in asked:
            one.result()
        seconds = time.monotonic() - started
    for connection in connections:
        connection.close()
    return seconds


def _connect(spot: Spot, tls: ssl.SSLContext | None) -> socket.socket:
    plain = socket.create_connection(spot)
    return tls.wrap_socket(plain, server_hostname=spot[0]) if tls else plain


def _read_answer(connection: socket.socket) -> None:
    buffer = bytearray(1 << 20)
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(1 << 16)
    top, _, rest = received.partition(b"\r\n\r\n")
    if not top.startswith(b"HTTP/1.1 20"):
        raise EnvironmentFailure(f"the server answered {top[:40]!r}")
    lines = [line for line in top.lower().split(b"\r\n") if line.startswith(b"content-length: ")]
    left = int(lines[0].split(b" ")[1]) - len(rest) if lines else 0
    while left > 0:
        left -= connection.recv_into(buffer, min(left, len(buffer)))


def _raw(name: str, up: int, down: int, tls: tuple[Path, Path] | None) -> Transfer:
    """The same bytes over sockets to a program that throws them away, or makes them up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        spot = "localhost", listener.getsockname()[1]
        process = multiprocessing.get_context("fork").Process(target=_throw_away, args=(listener, tls), daemon=True)
        process.start()
    context = ssl.create_default_context(cafile=str(tls[0].with_name("ca.crt"))) if tls else None
    try:
        sent = [[(b"%d 0\n" % up, bytes(up))] for _ in range(AT_ONCE)]
        fetched = [[(b"0 %d\n" % down, b"")] for _ in range(AT_ONCE)]
        made = Transfer(
            name=name,
            up=AT_ONCE * up / _at_once(spot, context, sent),
            down=AT_ONCE * down / _at_once(spot, context, fetched),
        )
    finally:
        process.terminate()
        process.join()
    say(f"{name}: {made.up / 1e6:.0f} MB/s up, {made.down / 1e6:.0f} MB/s down")
    return made


def _throw_away(listener: socket.socket, tls: tuple[Path, Path] | None) -> None:
    context = None
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)

    def answer(connection: socket.socket) -> None:
        channel = context.wrap_socket(connection, server_side=True) if context else connection
        with channel.makefile("rb", buffering=0) as reader:
            line = b""
            while not line.endswith(b"\n"):
                line += reader.read(1) or b"\n"
            up, down = (int(number) for number in (line.split() or (b"0", b"0")))
            buffer = bytearray(1 << 20)
            while up > 0:
                up -= channel.recv_into(buffer, min(up, len(buffer)))
        channel.sendall(b"HTTP/1.1 200\r\nContent-Length: %d\r\n\r\n" % down)
        block = memoryview(bytes(1 << 20))
        while down > 0:
            channel.sendall(block[: min(down, len(block))])
            down -= min(down, len(block))

    while True:
        threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()


# --- what is shown --------------------------------------------------------------------------------------------------


def report(transfers: Sequence[Transfer], peak: float, served: Sequence[Served]) -> Report:
    """Figures and tables. transfers: ours, raw with TLS, raw without. peak: the server's, in models."""
    ours, raw, _ = transfers
    figures = [
        Figure(name="upload_over_raw_tls", value=ours.up / raw.up, aim=0.5, at_least=True),
        Figure(name="download_over_raw_tls", value=ours.down / raw.down, aim=0.5, at_least=True),
        Figure(name="server_peak_over_model", value=peak, aim=4.0),
    ]
    shown: tuple[tuple[str, str, Callable[[Served], float], float, bool], ...] = (
        ("joins_per_second", "1/s", lambda one: one.joins_a_second, 100.0, True),
        ("core_share", "cores", lambda one: one.core, 0.2, False),
        ("memory_per_member_bytes", "bytes", lambda one: one.memory, 150_000.0, False),
        ("round_seconds", "s", lambda one: median(one.rounds), 30.0, False),
    )
    figures += [
        Figure(name=f"{name}_{one.members}", unit=unit, value=value(one), aim=aim, at_least=at_least)
        for one in served
        for name, unit, value, aim, at_least in shown
    ]
    rates = tuple((one.name, f"{one.up / 1e6:.0f}", f"{one.down / 1e6:.0f}") for one in transfers)
    rows = tuple(
        (
            str(one.members),
            f"{one.joins_a_second:.0f}",
            f"{one.core:.3f}",
            f"{one.memory / 1024:.0f}",
            str(one.cohort),
            f"{median(one.rounds):.2f}",
        )
        for one in served
    )
    header = ("members", "joins a second", "cores, idle", "KiB a member", "of a round", "s a round")
    return Report(
        benchmark="serving",
        figures=tuple(figures),
        tables=(
            Table(title=f"MB/s, {AT_ONCE} at once", header=("", "up", "down"), rows=rates),
            Table(title="Members of one server", header=header, rows=rows),
        ),
        notes=(
            "uploads are secure ones, written to the disk and hashed by the server; raw sockets keep nothing",
            "members share the machine's cores with the server; a round's seconds hold the work of its members, too",
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
