"""The baselines of a comparison against the shortest loops that one would write by hand.

    python benchmarks/baselines.py [--quick] [--json]

All-reduce: two gloo ranks, each with examples of its own, in one process group. The loop of the mode `allreduce`, with
its schedule and its account, and `bare` below train the same model from the same weights and take turns. A figure is
the median over the turns of the ratio of their steps a second.

Parameter server: its push-pull pairs a second over those of the shortest server on the same engine; `ps_engine.py`
next to this file has it, with the engines themselves.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common import Figure, Report, Table, parser, run, say, sized
from benchmarks.engines import AIM, BATCH, FIGURE_MODEL, LR, MODELS, RANKS, seconds_together, time_models
from benchmarks.ps_engine import pairs_of, push_over_engine
from benchmarks.stopwatch import Times, median_ratio, take_turns
from fedcore.comparison.workers.schedule import Schedule
from fedcore.comparison.workers.training import RoundLoop
from fedcore.data import Split
from fedcore.run.engine_config import EngineConfig
from fedcore.training.engines import Recipe, make_engine


def main() -> int:
    """The command line."""
    options = parser("The baselines against the shortest hand-written loops.")
    options.add_argument("--turns", type=int, help="turns of each loop")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """Both models on one group of ranks each."""
    times, steps = time_models(arguments, _turns)
    value = median_ratio(times[FIGURE_MODEL])
    say("the parameter server")
    return Report(
        benchmark="baselines",
        figures=(
            Figure(name="allreduce_over_bare", value=value, aim=AIM, at_least=True),
            *push_over_engine(sized(arguments, smallest=1, quick=3, whole=7), pairs_of(arguments)),
        ),
        tables=(_table(times, steps),),
        notes=(f"batches of {BATCH} examples over {RANKS} ranks; the figure is for the {FIGURE_MODEL}",),
    )


def bare(model: DistributedDataParallel, data: Split, steps: int) -> None:
    """The shortest loop: a random order of the rank's own examples, forward, backward, step."""
    x, y = torch.tensor(data.x), torch.tensor(data.y)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    order = torch.randperm(len(y)).split(BATCH // RANKS)  # type: ignore[no-untyped-call]
    for rows in order[:steps]:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _turns(name: str, turns: int, steps: int) -> Times:
    """Seconds of each turn: the bare loop's, and ours."""
    rank, count = dist.get_rank(), BATCH // RANKS * steps
    rng = np.random.default_rng(rank)
    data = Split(x=rng.random((count, 28, 28), np.float32), y=rng.integers(0, 10, count))
    model = DistributedDataParallel(MODELS[name]())
    recipe = Recipe(build=MODELS[name], optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=LR))
    engine = make_engine(recipe, EngineConfig(engine="ddp"))
    engine.module.load_state_dict(model.module.state_dict())
    schedule = Schedule(counts=(count,) * RANKS, batch_size=BATCH, epochs=1)
    loop = RoundLoop(
        report=lambda report: None,
        make_engine=lambda: engine,
        data=data,
        rows=lambda number: schedule.share(rank, BATCH, seed=number),
        seed=lambda number: number,
        folder=None,
        tensors=[],
        lost_after=0,
    )
    loop.begin()
    loops = (lambda: bare(model, data, steps), lambda: _as_many(loop, steps))
    times = take_turns(loops, turns, seconds_together)
    engine.close()
    return times


def _as_many(loop: RoundLoop, steps: int) -> None:
    """One round, which has to be of as many steps as the bare loop makes."""
    if loop.train(1).steps != steps:
        raise AssertionError("the loops do not make the same number of steps")


def _table(times: Mapping[str, Times], steps: Mapping[str, int]) -> Table:
    rows = []
    for name, both in times.items():
        theirs, ours = (steps[name] / median(seconds) for seconds in both)
        rows.append((name, f"{1000 / theirs:.1f}", f"{theirs:.1f}", f"{ours:.1f}", f"{median_ratio(both):.3f}"))
    header = ("model", "ms of a bare step", "bare steps/s", "our steps/s", "ours over bare")
    return Table(title="All-reduce: steps a second", header=header, rows=tuple(rows))


if __name__ == "__main__":
    sys.exit(main())
