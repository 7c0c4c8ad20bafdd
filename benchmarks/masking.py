"""What a mask costs beyond its cipher: adding keystreams to a vector, against the cipher alone.

    python benchmarks/masking.py [--quick] [--json]

The floor of masking is to make the keystream and nothing else: masks * bytes / (the cipher's own rate), the rate
being the best that ChaCha20 reaches in this run on one thread, over several lengths of a call. A figure over the floor
is floor / time, so 1 is perfect. The client's case is d = 1e7 with the masks of 9 peers, at 2 and 4 bytes a parameter.
The server's case in a large cohort is the opposite: thousands of masks, each over a short vector.

All jobs take turns; the shortest time of each counts (benchmarks/stopwatch.py).
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.common import Figure, Report, Table, parser, run
from benchmarks.stopwatch import add_patience, patience_of, shortest
from fedcore.secagg import MaskTerm, Secret, apply_masks

PARAMETERS = 10**7
MASKS = 9
WIDTHS = (2, 4)
THREADS = (1, 2)
MANY_WORDS = 25_000
MANY_MASKS = 3_000
"""d = 1e5 at 2 bytes a parameter, as in a cohort of a thousand. Several times as many masks are left in its sum when
some have dropped out; the time is proportional to their number."""

KIB = 1 << 10
CALLS = (64 * KIB, 256 * KIB, 1024 * KIB)
CIPHER_BYTES = 64 * KIB * KIB

OVER_FLOOR_AIM = 0.85
SPEEDUP_AIM = 1.8
# A stream of 200 kB takes about 38 us, and opening it, which holds the interpreter lock, another 10.
MANY_OVER_FLOOR_AIM = 0.7
MANY_SPEEDUP_AIM = 1.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job and the bytes of keystream that it makes. call: bytes made at once, for the cipher alone."""

    title: str
    keystream: int
    threads: int
    call: int = 0


def cipher_case(call: int, threads: int) -> Case:
    """ChaCha20 alone."""
    return Case(
        title=f"cipher alone, {call // KIB} KiB a call", keystream=threads * CIPHER_BYTES, threads=threads, call=call
    )


def client_case(width: int, threads: int) -> Case:
    """A client's masks at `width` bytes a parameter."""
    return Case(title=f"{MASKS} masks, d = 1e7, {width} bytes", keystream=MASKS * PARAMETERS * width, threads=threads)


def server_case(threads: int) -> Case:
    """The masks that a server removes, each over a short vector."""
    return Case(
        title=f"{MANY_MASKS:,} masks, {MANY_WORDS:,} words", keystream=MANY_MASKS * MANY_WORDS * 8, threads=threads
    )


def main() -> int:
    """The command line."""
    options = parser("What a mask costs beyond its cipher.")
    add_patience(options)
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """All jobs in turn."""
    jobs = {
        **{cipher_case(call, threads): cipher_job(call, threads) for call in CALLS for threads in THREADS},
        **{
            client_case(width, threads): masking_job(PARAMETERS * width // 8, MASKS, threads)
            for width in WIDTHS
            for threads in THREADS
        },
        **{server_case(threads): masking_job(MANY_WORDS, MANY_MASKS, threads) for threads in THREADS},
    }
    return report(shortest(jobs, patience_of(arguments)))


def cipher_job(call: int, threads: int) -> Callable[[], None]:
    """CIPHER_BYTES of ChaCha20 on each thread, `call` bytes at once, into one buffer."""

    def make() -> None:
        zeros, keystream = bytes(call), bytearray(call)
        stream = Cipher(algorithms.ChaCha20(os.urandom(32), bytes(16)), mode=None).encryptor()
        for _ in range(CIPHER_BYTES // call):
            stream.update_into(zeros, keystream)

    def make_on_threads() -> None:
        workers = [threading.Thread(target=make) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    return make if threads == 1 else make_on_threads


def masking_job(count: int, masks: int, threads: int) -> Callable[[], None]:
    """`masks` masks, half of them subtracted, on a vector of `count` words."""
    words = np.zeros(count, dtype=np.uint64)
    terms = [MaskTerm(sign=1 if number % 2 else -1, seed=Secret(os.urandom(32))) for number in range(masks)]
    return lambda: apply_masks(words, terms, threads=threads)


def report(times: Mapping[Case, float]) -> Report:
    """Figures and rates. times: seconds of each case."""
    cipher = max(rate for case, rate in _rates(times).items() if case.call and case.threads == 1)

    def over_floor(case: Case) -> float:
        return case.keystream / cipher / times[case]

    clients = {width: [client_case(width, threads) for threads in THREADS] for width in WIDTHS}
    server = [server_case(threads) for threads in THREADS]
    figures = [
        Figure(
            name=f"mask_over_floor_1thread_{width}bytes",
            value=over_floor(one),
            aim=OVER_FLOOR_AIM,
            at_least=True,
        )
        for width, (one, _) in clients.items()
    ]
    speedup = min(times[one] / times[two] for one, two in clients.values())
    figures += [
        Figure(name="mask_two_threads_speedup", value=speedup, aim=SPEEDUP_AIM, at_least=True),
        Figure(
            name="unmask_many_terms_over_floor_1thread",
            value=over_floor(server[0]),
            aim=MANY_OVER_FLOOR_AIM,
            at_least=True,
        ),
        Figure(
            name="unmask_many_terms_speedup",
            value=times[server[0]] / times[server[1]],
            aim=MANY_SPEEDUP_AIM,
            at_least=True,
        ),
    ]
    return Report(
        benchmark="masking",
        figures=tuple(figures),
        tables=(_table(times, cipher),),
        notes=(
            f"the floor is masks * bytes at {cipher / 1e9:.2f} GB/s, the cipher's best rate on one thread in this run; "
            "the last column is the rate over that one",
            "the speed-up is the smaller of those at 2 and at 4 bytes; the cipher's own is the most that two threads "
            "can bring on this machine",
        ),
    )


def _rates(times: Mapping[Case, float]) -> dict[Case, float]:
    """Bytes of keystream a second."""
    return {case: case.keystream / seconds for case, seconds in times.items()}


def _table(times: Mapping[Case, float], cipher: float) -> Table:
    rates = _rates(times)
    rows = [
        (
            case.title,
            str(case.threads),
            f"{1e3 * times[case]:.1f}",
            f"{rate / 1e9:.2f}",
            f"{rate / cipher:.3f}",
        )
        for case, rate in rates.items()
    ]
    return Table(
        title="Keystream", header=("work", "threads", "ms", "GB/s", "over one thread of cipher"), rows=tuple(rows)
    )


if __name__ == "__main__":
    sys.exit(main())
