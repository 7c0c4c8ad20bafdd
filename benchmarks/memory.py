"""Peak memory of a rank that trains with Adam, for each engine, against the arithmetic.

    python benchmarks/memory.py [--quick] [--json]

The model is ten square layers, 1e8 parameters together; `--quick` takes 1e7. Weights, gradient and two moments are four
times the model in float32: all of it on every rank for "single" and "ddp", 1/p of it on each of p ranks for "fsdp", in
addition to the blocks that are gathered at a time, and for "tp" and "pp", which gather nothing. Measured is the highest
resident memory of a rank, from Linux's /proc, above that of the same process after a round with a tiny model: building,
loading from a file, three steps, saving.

The ranks run with a fixed MALLOC_MMAP_THRESHOLD_. Without, glibc keeps much of the memory that a rank has freed, in
pieces too small for the next block; with it, every large tensor goes back at once, at the price of page faults.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import torch
from torch import nn

from benchmarks.common import Figure, Report, Table, parser, run, say, sized
from benchmarks.groups import on_ranks
from benchmarks.resident import peak_resident_bytes, reset_peak, resident_bytes
from fedcore.data import Split
from fedcore.run.engine_config import EngineConfig
from fedcore.state import FileSink, Layout, ModelState, TensorSpec
from fedcore.training.engines import Recipe, make_engine
from fedcore.training.engines.building import ParallelPlan

BLOCKS = 10
FLOAT32_BYTES = 4
STEPS = 3
EXAMPLES = 16
# Weights, gradient, two moments: in units of the model.
STATE = 4.0
# In units of a block: gathered are one block and the next; the gradient of one is whole, and copied to be sent.
GATHERED = 4.0
# What the allocator and the sums over the parts of a gradient need beside, as a part of the arithmetic.
SLACK = 1.1
MIB = float(1 << 20)
MMAP_THRESHOLD = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One row. gathered: blocks that a rank holds in addition to its share."""

    name: str
    engine: str
    ranks: int
    share: float
    gathered: float = 1.0

    @property
    def arithmetic(self) -> float:
        """Peak in units of the model; Adam's denominator for one layer, or the gathered blocks, included."""
        return STATE * self.share + self.gathered / BLOCKS


SETUPS = (
    Setup(name="single", engine="single", ranks=1, share=1.0),
    Setup(name="ddp2", engine="ddp", ranks=2, share=1.0),
    Setup(name="fsdp2", engine="fsdp", ranks=2, share=1 / 2, gathered=GATHERED),
    Setup(name="fsdp4", engine="fsdp", ranks=4, share=1 / 4, gathered=GATHERED),
    Setup(name="tp2", engine="tp", ranks=2, share=1 / 2, gathered=1 / 2),
    Setup(name="pp2", engine="pp", ranks=2, share=1 / 2),
)
WITH_FIGURES = ("single", "fsdp2", "fsdp4")


def main() -> int:
    """The command line."""
    return run(measure, parser("Peak memory of a rank, for each engine.").parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """Each engine in processes of its own."""
    width = sized(arguments, smallest=100, quick=1000, whole=3162)
    setups = SETUPS[:1] if arguments.smallest else SETUPS
    model_bytes = sum(spec.nbytes for spec in layout_of(width).specs)
    # See mallopt(3); read when a process starts, as each rank does.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(MMAP_THRESHOLD)
    peaks = {}
    with tempfile.TemporaryDirectory(prefix="fedcore-memory-") as folder:
        path = Path(folder) / "model.safetensors"
        _write_model(path, width)
        for setup in setups:
            say(f"{setup.name}: {setup.ranks} ranks, {model_bytes / FLOAT32_BYTES:.1e} parameters")
            found = on_ranks(setup.ranks, _peak, setup.engine, width, path, start="spawn")
            peaks[setup.name] = max(found) / model_bytes
    figures = [
        Figure(name=f"peak_over_model_{setup.name}", value=peaks[setup.name], aim=round(setup.arithmetic * SLACK, 2))
        for setup in setups
        if setup.name in WITH_FIGURES
    ]
    return Report(
        benchmark="memory",
        figures=tuple(figures),
        tables=(_table(setups, peaks, model_bytes),),
        notes=(
            f"model: {model_bytes / FLOAT32_BYTES:.2e} parameters in {BLOCKS} blocks, {model_bytes / MIB:.0f} MiB",
            "arithmetic: weights, gradient and two moments, whole or sharded, and one block for Adam's denominator; "
            f"with fsdp {GATHERED:g} blocks: two gathered, one's gradient, and that gradient packed to be sent",
            f"MALLOC_MMAP_THRESHOLD_={MMAP_THRESHOLD}: what is freed goes back to the system at once",
        ),
    )


def _table(setups: Sequence[Setup], peaks: dict[str, float], model_bytes: int) -> Table:
    rows = (
        (
            setup.engine,
            str(setup.ranks),
            f"{setup.arithmetic:.2f}",
            f"{peaks[setup.name]:.2f}",
            f"{peaks[setup.name] * model_bytes / MIB:.0f}",
            f"{peaks[setup.name] / setup.arithmetic:.2f}",
        )
        for setup in setups
    )
    header = ("engine", "ranks", "arithmetic / model", "peak / model", "peak MiB", "peak / arithmetic")
    return Table(title="Peak of the rank that holds most", header=header, rows=tuple(rows))


def _peak(engine: str, width: int, path: Path) -> int:
    """Bytes of this rank above those after a tiny run, which loads what torch loads late."""
    with tempfile.TemporaryDirectory(prefix="fedcore-memory-rank-") as folder:
        tiny = Path(folder) / "tiny.safetensors"
        _write_model(tiny, 8)
        _train(engine, 8, tiny, Path(folder) / "out.safetensors")
        before = resident_bytes(os.getpid())
        reset_peak(os.getpid())
        _train(engine, width, path, Path(folder) / "out.safetensors")
        return peak_resident_bytes(os.getpid()) - before


def _train(kind: str, width: int, path: Path, out: Path) -> None:
    """One federated round on this rank: file, steps, file."""
    recipe = Recipe(build=lambda: Layers(width), optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=1e-4))
    engine = make_engine(recipe, EngineConfig(engine=kind))
    engine.load(ModelState.open(path))
    x = np.random.default_rng(0).normal(size=(EXAMPLES, width)).astype(np.float32)
    for batch in engine.batches(Split(x=x, y=np.arange(EXAMPLES) % width), batch_size=8, seed=0, steps=STEPS):
        engine.step(batch)
    if engine.world.rank == 0:
        with FileSink(out, engine.layout()) as sink:
            engine.save(sink)
    else:
        engine.save(None)
    engine.close()


class Layers(nn.Sequential):
    """Square linear layers, each a block of its own."""

    def __init__(self, width: int) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for number in range(BLOCKS):
            layers[f"linear{number}"] = nn.Linear(width, width, bias=False)
            layers[f"relu{number}"] = nn.ReLU()
        super().__init__(layers)

    def parallel_plan(self) -> ParallelPlan:
        """Pairs of layers for tensor parallelism: the first by its outputs, the second by its inputs."""
        names = [f"linear{number}" for number in range(BLOCKS)]
        split: dict[str, Literal["colwise", "rowwise"]] = {
            name: "rowwise" if number % 2 else "colwise" for number, name in enumerate(names)
        }
        layers = tuple(name for name, _ in self.named_children())
        return ParallelPlan(blocks=tuple(names), tensor=split, heads=2, layers=layers)


def layout_of(width: int) -> Layout:
    """The tensors of a model of square layers."""
    names = (f"linear{number}.weight" for number in range(BLOCKS))
    return Layout(specs=tuple(TensorSpec(name=name, dtype="F32", shape=(width, width)) for name in names))


def _write_model(path: Path, width: int) -> None:
    rng = np.random.default_rng(1)
    layout = layout_of(width)
    with FileSink(path, layout) as sink:
        for spec in layout.specs:
            sink.write(spec, 0, rng.standard_normal(spec.size, np.float32) / np.float32(width**0.5))


if __name__ == "__main__":
    sys.exit(main())
