"""What encoding and decoding cost compared with a copy, and how exact the decoded mean is.

    python benchmarks/codec.py [--quick] [--json] [--large 1e8 1e9]

encode_over_copy, decode_over_copy: float32 bytes of update (4 d) that the codec takes or gives a second, over those
that `np.copyto` copies from one float32 array to another a second. The codec has two threads, the copy has the one
that NumPy gives it; the fields are 16 bits wide, as they are by default. The table has every width on one thread and
on two, and next to it the ratio of the memory traffic: bytes read and written (the codec: two float32 in and one field
out, or one field and one float32 in and one float32 out; the copy: one float32 in, one out). What the codec does
beyond moving bytes is in there, too: two random bytes from ChaCha20 for each element that it rounds.
64 bits are those of the first exchange of a run. Updates of 12 bits and fewer are rotated, on one thread, which costs
more than all else.

error_over_bound: the largest |decoded - exact| over the bound (fedcore/codec/scaling/error_bound.py), the exact mean in
float64, over updates that are Gaussian, heavy-tailed (Student's t with 2 degrees of freedom, Cauchy) and sparse, at
every width and for 8 and 100 clients (benchmarks/codec_errors.py).

--large: vectors of up to a billion elements through codec and masks (benchmarks/large.py): time and peak memory.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.codec_errors import CASES, Found, elements_of, largest_errors
from benchmarks.common import Figure, Report, Table, parser, run, say, sized
from benchmarks.large import LargeRun, measure_large
from benchmarks.stopwatch import add_patience, patience_of, shortest
from fedcore.codec import CodecSettings, Encoding, decode, encode, rotation_seed
from fedcore.codec.settings import NARROW_BITS
from fedcore.state import ModelState

PARAMETERS = 10**7
CLIENTS = 8
WIDTHS = (8, 10, 12, 16, 21, 32, 64)
DEFAULT_WIDTH = CodecSettings().field_bits
THREADS = (1, 2)
FLOAT32_BYTES = 4

SPEED_AIM = 0.25
ERROR_AIM = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing to time. work: "copy", "encode" or "decode"; bits: width of the fields, 0 for the copy."""

    work: str
    bits: int
    threads: int

    @property
    def traffic(self) -> float:
        """Bytes that are read and written for each element."""
        return 2 * FLOAT32_BYTES + (1 / (64 // self.bits) * 8 if self.bits else 0)


COPY = Case(work="copy", bits=0, threads=1)


def main() -> int:
    """The command line."""
    options = parser("What encoding and decoding cost compared with a copy, and how exact the decoded mean is.")
    add_patience(options)
    options.add_argument(
        "--large", type=float, nargs="+", default=[], metavar="D", help="also go through vectors of D elements"
    )
    options.add_argument(
        "--folder", type=Path, metavar="FOLDER", help="where the files of --large go for as long as it runs"
    )
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """Speed, errors, and large vectors where they are asked for."""
    say("speed")
    parameters = sized(arguments, smallest=10_000, quick=PARAMETERS, whole=PARAMETERS)
    times = shortest(jobs(parameters), patience_of(arguments))
    say("errors")
    elements = elements_of(arguments)
    errors = {case: largest_errors(case, parameters=elements) for case in CASES}
    large = []
    for size in arguments.large:
        say(f"d = {size:.0e}")
        large.append(measure_large(int(size), folder=arguments.folder))
    return report(times, errors, large, parameters=parameters)


def jobs(parameters: int) -> dict[Case, Callable[[], object]]:
    """Everything that is timed, on one model of `parameters` elements."""
    rng = np.random.default_rng(1)
    base = ModelState.from_arrays({"weight": rng.standard_normal(parameters, dtype=np.float32)})
    step = rng.standard_normal(parameters, dtype=np.float32) * np.float32(0.01)
    local = ModelState.from_arrays({"weight": base["weight"] + step})
    made: dict[Case, Callable[[], object]] = {
        Case(work="copy", bits=0, threads=threads): _copy(step, threads) for threads in THREADS
    }
    for bits in WIDTHS:
        settings = CodecSettings(w_max=100, field_bits=bits if bits <= NARROW_BITS else DEFAULT_WIDTH)
        encoding = Encoding(
            settings=settings, layout=base.layout, n_max=CLIENTS, field_bits=bits, scales=(0.1,),
            rotation=rotation_seed("0" * 64) if settings.compresses else "",
        )  # fmt: skip
        for threads in THREADS if not settings.compresses else THREADS[:1]:
            made[Case(work="encode", bits=bits, threads=threads)] = _encode(encoding, base, local, threads)
            made[Case(work="decode", bits=bits, threads=threads)] = _decode(encoding, base, local, threads)
    return made


def _copy(source: np.ndarray, threads: int) -> Callable[[], object]:
    target = np.empty_like(source)
    if threads == 1:
        return lambda: np.copyto(target, source)
    pairs = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))

    def copy() -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda pair: np.copyto(*pair), pairs))

    return copy


def _encode(encoding: Encoding, base: ModelState, local: ModelState, threads: int) -> Callable[[], object]:
    """Into a buffer that is there already, as a client's second round finds it."""
    out = np.empty(encoding.words, np.uint64)
    return lambda: encode(
        encoding,
        base=base,
        local=local,
        examples=50,
        metrics={},
        randomness=os.urandom,
        out=out,
        threads=threads,
    )


def _decode(encoding: Encoding, base: ModelState, local: ModelState, threads: int) -> Callable[[], object]:
    """Into memory that is new each time: the new model outlives the round."""
    encoded = encode(encoding, base=base, local=local, examples=50, metrics={}, randomness=os.urandom)
    return lambda: decode(encoding, encoded.words, survivors=1, base=base, threads=threads)


def report(
    times: Mapping[Case, float],
    errors: Mapping[str, Sequence[Found]],
    large: Sequence[LargeRun],
    *,
    parameters: int = PARAMETERS,
) -> Report:
    """Figures and tables. times: shortest seconds of each case, for `parameters` elements."""
    figures = [
        Figure(
            name=f"{work}_over_copy",
            value=times[COPY] / times[Case(work=work, bits=DEFAULT_WIDTH, threads=THREADS[-1])],
            aim=SPEED_AIM,
            at_least=True,
        )
        for work in ("encode", "decode")
    ]
    worst = max(found.ratio for cases in errors.values() for found in cases)
    figures.append(Figure(name="error_over_bound", value=worst, aim=ERROR_AIM))
    return Report(
        benchmark="codec",
        figures=tuple(figures),
        tables=(_speed_table(times, parameters), _error_table(errors), *(one.table() for one in large)),
        notes=(
            f"d = {parameters:.0e}, one float32 tensor; the figures are those of {DEFAULT_WIDTH} bits on {THREADS[-1]} "
            "threads; times are the shortest of all turns",
            '"of a copy" counts the float32 bytes of the update, "traffic" all bytes read and written; both over one '
            "thread of np.copyto",
            "errors: of the decoded state, base + mean in float32, against the mean in float64; the bound is that of "
            "fedcore/codec/scaling/error_bound.py with the statistics of the round",
        ),
    )


def _speed_table(times: Mapping[Case, float], parameters: int) -> Table:
    rows = [
        (
            case.work,
            str(case.bits or ""),
            str(case.threads),
            f"{1e3 * seconds:.1f}",
            f"{FLOAT32_BYTES * parameters / seconds / 1e9:.2f}",
            f"{times[COPY] / seconds:.3f}",
            f"{times[COPY] / seconds * case.traffic / COPY.traffic:.3f}",
        )
        for case, seconds in times.items()
    ]
    return Table(
        title="Speed",
        header=("work", "bits", "threads", "ms", "GB/s of float32", "of a copy", "traffic"),
        rows=tuple(rows),
    )


def _error_table(errors: Mapping[str, Sequence[Found]]) -> Table:
    rows = [
        (
            name,
            str(found.bits),
            str(found.clients),
            str(found.rounds),
            f"{found.largest_update:.2g}",
            f"{found.error:.2g}",
            f"{found.bound:.2g}",
            f"{found.ratio:.3f}",
        )
        for name, cases in errors.items()
        for found in cases
    ]
    header = ("update", "bits", "clients", "rounds", "largest update", "largest error", "bound", "ratio")
    return Table(title="Error of the decoded mean", header=header, rows=tuple(rows))


if __name__ == "__main__":
    sys.exit(main())
