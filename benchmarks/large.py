"""Models of up to a billion parameters through codec and masks on one machine: time and peak memory.

    python benchmarks/large.py --parameters 1e8 [--folder FOLDER]

prints one JSON object; `benchmarks/codec.py --large 1e8` starts it in a process of its own for each size, whose peak
is then that of this work alone. The global and the trained model are safetensors files in a temporary folder, read
through a memory map, as a client has them; the new model is written to a third file, as the server does it, and held
against the trained one: with one survivor, it is the mean.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import psutil

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.common import Table
from benchmarks.resident import peak_resident_bytes, reset_peak
from fedcore.codec import CodecSettings, Encoded, Encoding, decode, encode
from fedcore.codec.encoding import scale_groups
from fedcore.codec.scaling.error_bound import error_bound
from fedcore.errors import EnvironmentFailure
from fedcore.secagg import MaskTerm, Secret, apply_masks
from fedcore.state import FileSink, Layout, ModelState, TensorSpec

TENSORS = 16
MASKS = 9
CLIENTS = 8
EXAMPLES = 100
BITS = 16
SCALE = 0.125
STEP = 0.01
BLOCK = 1 << 22
FILES = 3
FLOAT32_BYTES = 4
MIB = float(1 << 20)

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage: its seconds, those of the processor in all threads, and the peak of resident memory in bytes.

    The peak includes mapped files. On a machine that is busy otherwise, the processor's seconds say more.
    """

    name: str
    seconds: float
    processor: float
    peak: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeRun:
    """A vector of `parameters` elements through all stages.

    words: bytes of the encoded vector. idle: resident bytes before the first stage. error_over_bound: of the decoded
    model.
    """

    parameters: int
    words: int
    idle: int
    threads: int
    error_over_bound: float
    stages: tuple[Stage, ...]

    def to_json(self) -> str:
        """One line, for the process that asked."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> LargeRun:
        """The run of `to_json`."""
        data = json.loads(text)
        return cls(**{**data, "stages": tuple(Stage(**stage) for stage in data["stages"])})

    def table(self) -> Table:
        """Time and memory of each stage."""
        rows = [
            (
                stage.name,
                f"{stage.seconds:.2f}",
                f"{stage.processor:.2f}",
                f"{1e9 * stage.processor / self.parameters:.2f}",
                f"{stage.peak / MIB:.0f}",
                f"{stage.peak / self.words:.2f}",
            )
            for stage in self.stages
        ]
        title = (
            f"d = {self.parameters:.0e}, {BITS} bits, {self.threads} threads: the vector takes {self.words / MIB:.0f} "
            f"MiB, the process {self.idle / MIB:.0f} MiB before; error over bound {self.error_over_bound:.3f}"
        )
        return Table(
            title=title,
            header=("stage", "s", "processor s", "processor ns an element", "peak MiB", "peak over vector"),
            rows=tuple(rows),
        )


def measure_large(parameters: int, *, folder: Path | None) -> LargeRun:
    """Go through one size in a fresh process. Raises EnvironmentFailure if it does not end well."""
    command = [sys.executable, str(Path(__file__).resolve()), "--parameters", str(parameters)]
    command += ["--folder", str(folder)] if folder else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise EnvironmentFailure(f"d = {parameters:.0e} did not come to an end (status {done.returncode})")
    return LargeRun.from_json(done.stdout)


def main() -> int:
    """The command line."""
    options = argparse.ArgumentParser(description="A large model through codec and masks.")
    options.add_argument("--parameters", type=float, required=True, help="elements of the model")
    options.add_argument("--folder", type=Path, help="where the temporary folder is made")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="large-") as folder:
        try:
            print(go_through(int(arguments.parameters), Path(folder)).to_json())
        except EnvironmentFailure as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code
    return 0


def go_through(parameters: int, folder: Path) -> LargeRun:
    """All stages, with files in `folder`. Raises EnvironmentFailure if memory or disk do not suffice."""
    layout = _layout(parameters)
    encoding = Encoding(
        settings=CodecSettings(w_max=EXAMPLES, field_bits=BITS),
        layout=layout,
        n_max=CLIENTS,
        field_bits=BITS,
        scales=(SCALE,) * len(scale_groups(layout)),
    )
    _check_room(encoding, folder)
    _write_models(layout, folder)
    base, local = ModelState.open(folder / "base.safetensors"), ModelState.open(folder / "local.safetensors")
    threads = os.cpu_count() or 1
    terms = [MaskTerm(sign=1 if number % 2 else -1, seed=Secret(os.urandom(32))) for number in range(MASKS)]
    watch = _Watch()
    encoded = watch.stage("client: encode", lambda: _encode(encoding, base, local, threads))
    words = encoded.words
    watch.stage(f"client: {MASKS} masks", lambda: apply_masks(words, terms, threads=threads))
    removed = [term.inverse() for term in terms]
    watch.stage(f"server: remove {MASKS} masks", lambda: apply_masks(words, removed, threads=threads))
    decoded = watch.stage(
        "server: decode, to a file that is synced",
        lambda: decode(
            encoding,
            words,
            survivors=1,
            base=base,
            out_path=folder / "new.safetensors",
            threads=threads,
        ),
    )
    assert decoded.state is not None
    bound = error_bound(encoding, survivors=1, examples=EXAMPLES, statistics=decoded.statistics, base=base)
    return LargeRun(
        parameters=parameters,
        words=words.nbytes,
        idle=watch.idle,
        threads=threads,
        error_over_bound=_largest_ratio(decoded.state, local, bound),
        stages=tuple(watch.stages),
    )


class _Watch:
    """Seconds and peak of one stage after the other."""

    def __init__(self) -> None:
        reset_peak(os.getpid())
        self.idle = peak_resident_bytes(os.getpid())
        self.stages: list[Stage] = []

    def stage(self, name: str, work: Callable[[], _Result]) -> _Result:
        """Do the work of one stage."""
        reset_peak(os.getpid())
        start, processor = time.perf_counter(), time.process_time()
        result = work()
        seconds, processor = time.perf_counter() - start, time.process_time() - processor
        peak = peak_resident_bytes(os.getpid())
        self.stages.append(Stage(name=name, seconds=seconds, processor=processor, peak=peak))
        return result


def _layout(parameters: int) -> Layout:
    """TENSORS float32 tensors of about the same size."""
    borders = [parameters * number // TENSORS for number in range(TENSORS + 1)]
    return Layout(
        specs=tuple(
            TensorSpec(name=f"layers.{number}.weight", dtype="F32", shape=(borders[number + 1] - borders[number],))
            for number in range(TENSORS)
        )
    )


def _check_room(encoding: Encoding, folder: Path) -> None:
    files = FILES * sum(spec.size for spec in encoding.floats) * FLOAT32_BYTES
    if shutil.disk_usage(folder).free < 1.1 * files:
        raise EnvironmentFailure(f"{folder} has no room for {files / MIB:.0f} MiB of models; choose another --folder")
    words = encoding.words * 8
    if psutil.virtual_memory().available < 1.5 * words:
        raise EnvironmentFailure(f"the vector takes {words / MIB:.0f} MiB, which is too much next to what runs here")


def _write_models(layout: Layout, folder: Path) -> None:
    """base.safetensors and local.safetensors, which differ by a hundredth."""
    rng = np.random.default_rng(1)
    with (
        FileSink(folder / "base.safetensors", layout) as base,
        FileSink(folder / "local.safetensors", layout) as local,
    ):
        for spec, start, stop in _blocks(layout):
            block = rng.standard_normal(stop - start, dtype=np.float32)
            base.write(spec, start, block)
            local.write(spec, start, block + np.float32(STEP) * block[::-1])


def _encode(encoding: Encoding, base: ModelState, local: ModelState, threads: int) -> Encoded:
    return encode(
        encoding,
        base=base,
        local=local,
        examples=EXAMPLES,
        metrics={},
        randomness=os.urandom,
        threads=threads,
    )


def _largest_ratio(decoded: ModelState, exact: ModelState, bound: dict[str, float]) -> float:
    """The largest error over its tensor's bound."""
    largest = 0.0
    for spec, start, stop in _blocks(exact.layout):
        error = decoded.float32(spec.name, start, stop).astype(np.float64) - exact.float32(spec.name, start, stop)
        largest = max(largest, float(np.abs(error).max()) / bound[spec.name])
        decoded.release()
        exact.release()
    return largest


def _blocks(layout: Layout) -> Iterator[tuple[TensorSpec, int, int]]:
    for spec in layout.specs:
        for start in range(0, spec.size, BLOCK):
            yield spec, start, min(start + BLOCK, spec.size)


if __name__ == "__main__":
    sys.exit(main())
