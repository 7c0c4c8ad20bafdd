"""An app's own torch Dataset in our training loop against the plain loop around a DataLoader.

    python benchmarks/dataset.py [--quick] [--json]

Both loops train the same small model on examples of digits' size, in one process on one core, and take turns; a figure
is the median over the turns of the ratio of their processor seconds. Our loop gives each example a seed of its own, so
that what a dataset draws at random does not depend on who reads it when; with so small an example this is what costs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.common import Figure, Report, Table, parser, run, say, sized
from benchmarks.stopwatch import Times, median_ratio, take_turns
from fedcore.run.engine_config import EngineConfig
from fedcore.training.engines import Recipe, make_engine
from fedcore.training.models import mlp

BATCH = 32
FEATURES, CLASSES = 64, 10
LR = 0.05
# 50 microseconds for a seed of its own, and for the engine around the step, beside 30 of a plain loop's example.
AIM = 2.5


class Examples(Dataset[tuple[Tensor, Tensor]]):
    """Examples in memory. noisy: with random noise on each, as an augmentation adds it."""

    def __init__(self, examples: int, *, noisy: bool) -> None:
        generator = torch.Generator().manual_seed(0)
        self._x = torch.rand(examples, FEATURES, generator=generator)
        self._y = torch.randint(CLASSES, (examples,), generator=generator)
        self._noisy = noisy

    def __len__(self) -> int:
        return len(self._y)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        x = self._x[row]
        return x + 0.1 * torch.randn(FEATURES) if self._noisy else x, self._y[row]


def main() -> int:
    """The command line."""
    options = parser("A torch Dataset in our training loop against the plain loop.")
    options.add_argument("--turns", type=int, help="turns of each loop")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """Both kinds of examples."""
    torch.set_num_threads(1)
    turns = arguments.turns or sized(arguments, smallest=1, quick=5, whole=15)
    examples = sized(arguments, smallest=128, quick=1024, whole=4096)
    figures, rows = [], []
    for name, noisy in (("dataset", False), ("noisy_dataset", True)):
        say(f"{name}: {turns} turns of {examples} examples")
        times = _turns(Examples(examples, noisy=noisy), turns)
        ratio = 1 / median_ratio(times)
        figures.append(Figure(name=f"{name}_over_plain", value=ratio, aim=AIM))
        rows.append((name, *(f"{1e6 * median(seconds) / examples:.1f}" for seconds in times), f"{ratio:.3f}"))
    header = ("examples", "plain µs", "our µs", "ratio")
    table = Table(title="Microseconds of training for each example", header=header, rows=tuple(rows))
    return Report(benchmark="dataset", figures=tuple(figures), tables=(table,))


def _turns(data: Examples, turns: int) -> Times:
    """Seconds of each turn of the plain loop, and of our loop."""
    engine = make_engine(
        Recipe(build=_model, optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=LR)), EngineConfig()
    )
    model = _model()

    def ours() -> None:
        for batch in engine.batches(data, batch_size=BATCH, seed=0, epochs=1):
            engine.step(batch)

    times = take_turns((lambda: plain(model, data), ours), turns, _seconds)
    engine.close()
    return times


def _seconds(loop: Callable[[], None]) -> float:
    started = time.process_time()
    loop()
    return time.process_time() - started


def plain(model: nn.Module, data: Examples) -> None:
    """The loop that one would write by hand."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for x, y in DataLoader(data, batch_size=BATCH, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _model() -> nn.Module:
    return mlp(FEATURES, (64,), CLASSES)


if __name__ == "__main__":
    sys.exit(main())
