"""What rounding, packing and masking take on a GPU, and that its words are the host's.

    python benchmarks/device_codec.py [--parameters 1e8 1e9] [--quick] [--json]

mask_tb_a_second: bytes of keystream a second in terabytes, added to words that lie on the device, with the masks of 9
peers. upload_ready_over_host: the seconds from a trained model in a file to a masked upload in host memory, over those
that the host's processor takes with all its threads; the largest of --parameters that fit. The files lie in memory
(/dev/shm) where that has room for them.

If there is no device it says so, and has Triton's interpreter make the words of every width on the processor: then
words_that_differ is the only figure. It is counted on a device as well.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])
if not os.path.exists("/dev/nvidiactl"):  # Triton decides by it when it is imported
    os.environ["TRITON_INTERPRET"] = "1"

from benchmarks.common import Figure, Report, Table, parser, run, say
from fedcore.codec import CodecSettings, DeviceVector, Encoding, encode
from fedcore.errors import EnvironmentFailure
from fedcore.secagg import MaskTerm, Secret, apply_masks
from fedcore.state import ModelState

WIDTHS = (16, 21, 32, 64)
MASKS = 9
MASK_AIM = 0.6
SMALL = 3_000
REPEATS = 5
FOLDER = "/dev/shm"


def main() -> int:
    """The command line."""
    options = parser("What rounding, packing and masking take on a GPU, and that its words are the host's.")
    options.add_argument("--parameters", type=float, nargs="+", metavar="D", help="sizes of the model (1e8 1e9)")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """Agreement at every width, and on a device the times. Raises EnvironmentFailure without Triton."""
    try:
        import torch
        import triton
    except ImportError as error:
        raise EnvironmentFailure(f"{error}; install fedcore[gpu]") from None
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    say("agreement")
    widths = WIDTHS[: 1 if arguments.smallest else None]
    differing = sum(differences(bits, SMALL if device.type == "cpu" else 10**6, device) for bits in widths)
    figures = [Figure(name="words_that_differ", value=float(differing), unit="words", aim=0.0)]
    if device.type == "cpu":
        notes = ("no device is at hand: Triton's interpreter made the words, on the processor; there are no times",)
        return Report(benchmark="device_codec", figures=tuple(figures), tables=(), notes=notes)
    sizes = [int(size) for size in arguments.parameters or ([1e7] if arguments.quick else [1e8, 1e9])]
    rate = mask_rate(device, (10**8 if arguments.quick else 10**9) // 4)
    rows, ratio = [], 0.0
    for size in sizes:
        say(f"d = {size:.0e}")
        there, here = upload_seconds(size, device)
        ratio = there / here
        rows.append((f"{size:.0e}", f"{1e3 * there:.1f}", f"{1e3 * here:.1f}", f"{ratio:.3f}"))
    figures += [
        Figure(name="mask_tb_a_second", value=rate, unit="TB/s", aim=MASK_AIM, at_least=True),
        Figure(name="upload_ready_over_host", value=ratio, aim=1.0),
    ]
    table = Table(
        title=f"From a trained model to an upload with {MASKS} masks, 16 bits",
        header=("parameters", "device ms", "host ms", "over host"),
        rows=tuple(rows),
    )
    notes = (f"{torch.cuda.get_device_name()}, Triton {triton.__version__}; the host has {os.cpu_count()} threads",)
    return Report(benchmark="device_codec", figures=tuple(figures), tables=(table,), notes=notes)


def differences(bits: int, size: int, device: object) -> int:
    """Words of one update, encoded and masked, that are not the host's."""
    rng = np.random.default_rng(bits)
    base, local = (
        ModelState.from_arrays(
            {
                "large": rng.standard_normal(size, dtype=np.float32),
                "small": rng.standard_normal(7, dtype=np.float32),
            }
        )
        for _ in range(2)
    )
    encoding = encoding_of(base, bits)
    vector = DeviceVector(encoding.words, device)  # type: ignore[arg-type]
    terms, results = mask_terms(2), []
    for where in (None, vector):
        words = encoded(encoding, base, local, where, threads=2)
        (where.apply_masks if where else apply_masks)(words, terms)
        results.append(words)
    vector.close()
    return int(np.count_nonzero(results[0] != results[1]))


def encoding_of(base: ModelState, bits: int) -> Encoding:
    """With room for every element."""
    scales = (8.0,) * (1 + (len(base) > 1))
    return Encoding(settings=CodecSettings(w_max=100), layout=base.layout, n_max=8, field_bits=bits, scales=scales)


def encoded(
    encoding: Encoding, base: ModelState, local: ModelState, device: DeviceVector | None, *, threads: int
) -> np.ndarray:
    """The words, from the same random bytes each time."""
    randomness = random.Random(1).randbytes
    return encode(
        encoding,
        base=base,
        local=local,
        examples=50,
        metrics={},
        randomness=randomness,
        device=device,
        threads=threads,
    ).words


def mask_terms(count: int) -> list[MaskTerm]:
    """Every second one is subtracted."""
    return [MaskTerm(sign=1 if number % 2 else -1, seed=Secret(os.urandom(32))) for number in range(count)]


def mask_rate(device: object, count: int) -> float:
    """TB/s of keystream of MASKS masks over `count` words on the device."""
    import torch

    vector, terms = DeviceVector(count, device), mask_terms(MASKS)  # type: ignore[arg-type]

    def mask() -> None:
        vector.add_masks(terms, 0, count)
        torch.cuda.synchronize()

    seconds = shortest(mask)
    vector.close()
    return MASKS * count * 8 / seconds / 1e12


def upload_seconds(size: int, device: object) -> tuple[float, float]:
    """Seconds on the device and on the host."""
    threads = os.cpu_count() or 1
    folder = Path(tempfile.mkdtemp(dir=folder_for(2 * 4 * size)))
    try:
        for seed in (1, 2):
            values = np.random.default_rng(seed).standard_normal(size, dtype=np.float32)
            ModelState.from_arrays({"weight": values}).save(folder / f"{seed}.safetensors")
        base, local = (ModelState.open(folder / f"{seed}.safetensors") for seed in (1, 2))
        encoding, terms = encoding_of(base, 16), mask_terms(MASKS)

        def there() -> None:
            vector = DeviceVector(encoding.words, device)  # type: ignore[arg-type]
            words = encoded(encoding, base, local, vector, threads=threads)
            vector.apply_masks(words, terms)
            vector.close()

        def here() -> None:
            words = encoded(encoding, base, local, None, threads=threads)
            apply_masks(words, terms, threads=threads)

        return shortest(there), shortest(here)
    finally:
        shutil.rmtree(folder)


def folder_for(size: int) -> str | None:
    """/dev/shm where that has room for `size` bytes, which in a container are often 64 MB; else None, the usual one."""
    return FOLDER if os.path.isdir(FOLDER) and shutil.disk_usage(FOLDER).free > 1.1 * size else None


def shortest(job: Callable[[], None]) -> float:
    """The shortest of REPEATS times, in seconds, after one that does not count."""
    job()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    sys.exit(main())
