"""Training a GPT with our loop: samples a second, and model flops against the device's own matrix rate.

    python benchmarks/gpt.py [--size 100m] [--precision bf16] [--compile] [--quick] [--json]

On a GPU if there is one: a process group of one rank over NCCL, DDP. Without one it runs on the processor, where
a small size shows that it works. The matrix rate is that of a large square product in the same precision, measured in
the same run; a step's flops are those of the model (`flops_per_token`), without what is computed twice.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.common import Figure, Report, Table, parser, run, say
from fedcore.data import Split
from fedcore.run.engine_config import EngineConfig
from fedcore.training import OptimizerConfig, Recipe, World, make_engine
from fedcore.training.models import GPT, GPTConfig

VOCABULARY = 256
TURNS = 5
AIM = 0.3


def main() -> int:
    """The command line."""
    options = parser(__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--size", help='size of the GPT, "1m" to "1b" (default: 100m on a GPU, 1m without)')
    options.add_argument("--batch", type=int, default=0, help="sequences a step (default: 32 on a GPU, 4 without)")
    options.add_argument(
        "--context", type=int, default=0, help="tokens a sequence (default: 1024 on a GPU, 128 without)"
    )
    options.add_argument("--precision", choices=("fp32", "bf16"), help="default: bf16 on a GPU, fp32 without")
    options.add_argument("--compile", action="store_true", help="compile the model with torch.compile")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """One model on one device."""
    gpu = torch.cuda.is_available()
    size = arguments.size or ("100m" if gpu and not arguments.quick else "1m")
    shape = GPTConfig.of_size(size, vocabulary=VOCABULARY, context=arguments.context or (1024 if gpu else 128))
    batch = arguments.batch or (32 if gpu else 4)
    precision = arguments.precision or ("bf16" if gpu else "fp32")
    steps = 2 if arguments.quick else 10
    rate = matrix_rate(precision, 8192 if gpu else 1024)
    say(f"{size}: {shape.parameters:,} parameters, {batch} sequences of {shape.context} tokens, {precision}")
    with _group_of_one(gpu):
        seconds, loss = _train(shape, batch, steps, precision, compiled=arguments.compile)
    flops = flops_per_token(shape, shape.context) * batch * shape.context * steps / seconds
    memory = f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if gpu else "-"
    row = (size, precision, f"{batch * steps / seconds:.2f}", f"{batch * shape.context * steps / seconds:.0f}",
           f"{flops / 1e12:.3f}", f"{rate / 1e12:.3f}", f"{flops / rate:.3f}", memory, f"{loss:.3f}")  # fmt: skip
    header = ("size", "precision", "samples/s", "tokens/s", "model Tflop/s", "matrix Tflop/s", "used", "memory", "loss")
    return Report(
        benchmark="gpt",
        figures=(Figure(name="model_flops_overmatrix_rate", value=flops / rate, aim=AIM, at_least=True),),
        tables=(Table(title="One rank, DDP", header=header, rows=(row,)),),
        notes=(f"device: {torch.cuda.get_device_name() if gpu else 'processor, one thread'}",),
    )


def flops_per_token(shape: GPTConfig, length: int) -> float:
    """Floating point operations of a training step for one token of an input of `length` tokens.

    6 per weight that takes part in a matrix product (two forward, four backward), and 12 length * width per layer for
    attention: Chowdhery et al. (2022, "PaLM"), appendix B. As there, the causal mask saves nothing.
    """
    multiplied = 12 * shape.layers * shape.width**2 + shape.vocabulary * shape.width
    return 6.0 * multiplied + 12.0 * shape.layers * shape.width * length


def matrix_rate(precision: str, size: int) -> float:
    """Flops a second of a square matrix product."""
    device = World.current().device
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    seconds = median(_seconds(lambda: a @ b) for _ in range(2 * TURNS))
    return float(2 * size**3 / seconds)


def _train(shape: GPTConfig, batch: int, steps: int, precision: str, *, compiled: bool) -> tuple[float, float]:
    """Median seconds of `steps` steps, after a first turn that warms up; the last loss."""
    config = EngineConfig.from_mapping({"engine": "ddp", "precision": precision, "compile": compiled}, ranks=1)
    optimizer = OptimizerConfig(name="adamw", lr=3e-4)
    engine = make_engine(Recipe(build=lambda: GPT(shape), optimizer=optimizer), config)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (batch * steps, shape.context + 1))
    data = Split(x=tokens[:, :-1], y=tokens[:, 1:])
    loss = torch.zeros(())

    def turn() -> None:
        nonlocal loss
        for share in engine.batches(data, batch_size=batch, seed=0, epochs=1):
            loss = engine.step(share, clip_norm=1.0)

    turn()
    seconds = median(_seconds(turn) for _ in range(TURNS))
    engine.close()
    return seconds, float(loss) / batch


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


@contextmanager
def _group_of_one(gpu: bool) -> Iterator[None]:
    os.environ.setdefault("LOCAL_RANK", "0")
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("nccl" if gpu else "gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
