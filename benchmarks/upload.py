"""What it is worth to mask an update while it goes up, on lines of several speeds.

    python benchmarks/upload.py [--quick] [--json]

The client's own code, `client_app.exchange.upload` over its transport, sends a vector to a TLS server in another
process.
"masked first" has all masks added before the first byte leaves; "overlapped" masks each part while the ones before it
are on the line; "sent" sends what is masked already, and is the floor. The server reads no faster than the line that it
stands for and answers each part a round trip later, so waiting for answers costs what it would cost there. It keeps
nothing: what the real server does with an update is in benchmarks/round.py.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import uvicorn
from numpy.typing import NDArray

from benchmarks.common import Figure, Report, Table, parser, run, say, sized
from client_app.exchange.upload import Parts, send_parts
from client_app.http.errors import tls_context
from client_app.http.http_transport import HttpTransport, signer
from fedcore.federation import ClientKit, FederationFolder, provision
from fedcore.secagg import apply_masks
from fedcore.secagg.crypto.keys import Secret
from fedcore.secagg.crypto.masking import MaskTerm
from fedcore.wire.chunks import PART_BYTES

PATH = "/v1/runs/benchmark/exchanges/1/update/parts"
WORD_BYTES = 8
FIRST, OVERLAPPED, SENT = "masked first", "overlapped", "sent"
SOCKET_BYTES = 256 * 1024
"""What the server's socket takes in beyond what the line has carried; the system's own choice would hide the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A way to the server. bytes_a_second: 0 for as fast as it goes. round_trip: seconds until an answer is back.

    aim: largest ratio of overlapped to masked first that is good enough.
    """

    name: str
    bytes_a_second: float
    round_trip: float
    aim: float = 1.0


LINES = (
    # Without a line to wait for, what is sent takes the cores that could mask: there it must only cost nothing.
    Line(name="loopback", bytes_a_second=0.0, round_trip=0.0, aim=1.1),
    Line(name="1gbit", bytes_a_second=125e6, round_trip=0.02),
    Line(name="100mbit", bytes_a_second=12.5e6, round_trip=0.02),
)


class SlowServer:
    """Reads every body at the speed of the line, whichever connection it comes on, and says 204."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._free_at = 0.0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        more = scope["type"] == "http"
        while more:
            message = await receive()
            more = message.get("more_body", False)
            await self._carry(len(message.get("body", b"")))
        await asyncio.sleep(self._line.round_trip)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def _carry(self, size: int) -> None:
        """Wait until the line has carried `size` bytes more."""
        if not self._line.bytes_a_second:
            return
        now = time.monotonic()
        self._free_at = max(now, self._free_at) + size / self._line.bytes_a_second
        await asyncio.sleep(self._free_at - now)


def main() -> int:
    """The command line."""
    options = parser("What it is worth to mask an update while it goes up.")
    options.add_argument("--words", type=int, default=2_500_000, help="64-bit words (default: d = 1e7 at 2 bytes)")
    options.add_argument("--masks", type=int, default=10, help="masks of the client (default 10: a cohort of ten)")
    options.add_argument("--threads", type=int, default=min(4, os.cpu_count() or 1), help="threads that mask")
    options.add_argument("--repeats", type=int, help="uploads of each kind on each line, the median of which counts")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """All kinds in turn on each line, so that they meet the same machine in the same state."""
    repeats = arguments.repeats or sized(arguments, smallest=1, quick=3, whole=15)
    if arguments.smallest:
        arguments.words //= 100
    terms = [MaskTerm(sign=1, seed=Secret(os.urandom(32))) for _ in range(arguments.masks)]
    words = np.zeros(arguments.words, np.uint64)
    seconds: dict[tuple[str, str], float] = {}
    with tempfile.TemporaryDirectory(prefix="fedcore-benchmark-") as folder:
        for line in LINES:
            say(f"{line.name}: {repeats} uploads of each kind")
            with _server(Path(folder) / line.name, line) as kit:
                taken = asyncio.run(_uploads(kit, words, terms, arguments.threads, repeats))
            seconds |= {(line.name, kind): median(values) for kind, values in taken.items()}
    masking = median(_seconds_of_masking(words, terms, arguments.threads) for _ in range(repeats))
    return report(seconds, masking, arguments)


async def _uploads(
    kit: ClientKit, words: NDArray[np.uint64], terms: list[MaskTerm], threads: int, repeats: int
) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {FIRST: [], OVERLAPPED: [], SENT: []}
    async with HttpTransport(urls=kit.servers, tls=tls_context(kit.ca_file), sign=signer(kit)) as transport:
        await send_parts(transport, PATH, _given(_parts(words, [], 1)), size=words.nbytes)  # opens the connections
        for _ in range(repeats):
            for kind, values in taken.items():
                started = time.monotonic()
                parts = _parts(words, [] if kind == SENT else terms, threads)
                if kind == FIRST:
                    parts = _given(await asyncio.to_thread(list, parts))
                await send_parts(transport, PATH, parts, size=words.nbytes)
                values.append(time.monotonic() - started)
    return taken


def _parts(words: NDArray[np.uint64], terms: list[MaskTerm], threads: int) -> Parts:
    """What `ClientSession.mask_parts` does once the seeds are there."""
    step = PART_BYTES // WORD_BYTES
    for start in range(0, words.size, step):
        part = words[start : start + step]
        if terms:
            apply_masks(part, terms, threads=threads, offset=start)
        yield part.data.cast("B")


def _given(parts: Iterator[memoryview] | list[memoryview]) -> Parts:
    yield from parts


def _seconds_of_masking(words: NDArray[np.uint64], terms: list[MaskTerm], threads: int) -> float:
    started = time.monotonic()
    apply_masks(words, terms, threads=threads)
    return time.monotonic() - started


# --- the server -------------------------------------------------------------------------------------------------------


@contextmanager
def _server(folder: Path, line: Line) -> Iterator[ClientKit]:
    """A server process on a free port; the kit of its one client."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        federation = provision(
            folder, name="benchmark", clients=2, now=datetime.now(UTC), hosts=["127.0.0.1"], port=port
        )
        process = multiprocessing.get_context("fork").Process(target=_serve, args=(federation, listener, line))
        process.start()
        try:
            yield ClientKit.load(federation.clients[0])
        finally:
            process.terminate()
            process.join()


def _serve(federation: FederationFolder, listener: socket.socket, line: Line) -> None:
    config = uvicorn.Config(
        SlowServer(line),
        ssl_certfile=str(federation.server / "server.crt"),
        ssl_keyfile=str(federation.server / "server.key"),
        log_level="critical",
        lifespan="off",
        ws="none",
    )
    uvicorn.Server(config).run(sockets=[listener])


# --- what is shown ----------------------------------------------------------------------------------------------------


def report(seconds: dict[tuple[str, str], float], masking: float, arguments: argparse.Namespace) -> Report:
    """Figures and the table. seconds: (line, kind) -> median; masking: seconds of masking alone."""
    figures = tuple(
        Figure(
            name=f"overlapped_over_masked_first_{line.name}",
            value=seconds[line.name, OVERLAPPED] / seconds[line.name, FIRST],
            aim=line.aim,
        )
        for line in LINES
    )
    rows = tuple(
        (line.name, *(f"{seconds[line.name, kind]:.3f}" for kind in (FIRST, OVERLAPPED, SENT))) for line in LINES
    )
    return Report(
        benchmark="upload",
        figures=figures,
        tables=(Table(title="Seconds of an upload", header=("line", FIRST, OVERLAPPED, SENT), rows=rows),),
        notes=(
            f"{arguments.words * WORD_BYTES / 1e6:.0f} MB, {arguments.masks} masks on {arguments.threads} threads: "
            f"{masking:.3f} s of masking alone",
            "the lines but loopback have a round trip of 20 ms; client and server share the machine's cores",
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
