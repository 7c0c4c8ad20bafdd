"""Our loop with DDP against the shortest one that one would write by hand; a warm group of ranks against a cold one.

    python benchmarks/engines.py [--quick] [--json]

Two gloo ranks in one process group, on this machine's processors; both loops train the same model from the same
weights on the same batches, and take turns. A figure is the median over the turns of the ratio of their samples a
second. The hand-written loop is `bare` below.

Then the ranks of a client as the agent keeps them: what a round costs without its training (the task to the ranks, the
model from its file into the engine, the new one into a file, the answer), warm against a cold start.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
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
from benchmarks.groups import on_ranks
from benchmarks.stopwatch import Times, median_ratio, take_turns
from benchmarks.warm_group import Costs, measure_group
from fedcore.data import Split
from fedcore.run.engine_config import EngineConfig
from fedcore.training.engines import Recipe, make_engine
from fedcore.training.models import mcmahan_2nn, mcmahan_cnn

RANKS = 2
BATCH = 64
EXAMPLES = 1024
LR = 0.05
AIM = 0.97
WARM_AIM = 0.05
MODELS: Mapping[str, Callable[[], nn.Module]] = {"cnn": mcmahan_cnn, "2nn": mcmahan_2nn}
FIGURE_MODEL = "cnn"


def main() -> int:
    """The command line."""
    options = parser("Our loop with DDP against the shortest hand-written one.")
    options.add_argument("--turns", type=int, help="turns of each loop")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """Both models on one group of ranks each."""
    times, steps = time_models(arguments, _turns)
    starts, rounds = sized(arguments, smallest=(1, 1), quick=(1, 5), whole=(5, 20))
    say(f"a group of {RANKS} ranks: {starts} starts, {rounds} rounds after each")
    costs = measure_group(RANKS, starts=starts, rounds=rounds)
    ratios = {name: median_ratio(found) for name, found in times.items()}
    return Report(
        benchmark="engines",
        figures=(
            Figure(name="ddp_over_bare", value=ratios[FIGURE_MODEL], aim=AIM, at_least=True),
            Figure(name="warm_round_overhead_over_cold", value=costs.warm / costs.cold, aim=WARM_AIM),
        ),
        tables=(_table(times, ratios, steps), _group_table(costs)),
        notes=(
            f"batches of {BATCH} examples over {RANKS} ranks; the figure is for the {FIGURE_MODEL}",
            "ours lets the gradients live in DDP's buckets, which the hand-written loop leaves at its default; with a "
            "small model, whose step takes a few milliseconds, the calls around it show",
        ),
    )


def time_models(
    arguments: argparse.Namespace, turns_of: Callable[[str, int, int], Times]
) -> tuple[dict[str, Times], dict[str, int]]:
    """Times of both models on a group of ranks each, and steps of a turn.

    turns_of: run by each rank, with the model's name, the number of turns and that of the steps in each.
    """
    turns = arguments.turns or sized(arguments, smallest=1, quick=5, whole=15)
    counts = sized(arguments, smallest=(1, 1), quick=(6, 40), whole=(16, 150))
    steps = dict(zip(("cnn", "2nn"), counts, strict=True))
    times: dict[str, Times] = {}
    for name in MODELS:
        say(f"{name}: {turns} turns of {steps[name]} steps on {RANKS} ranks")
        # A step ends for all ranks together, so that one rank's clock is enough.
        times[name] = on_ranks(RANKS, turns_of, name, turns, steps[name])[0]
    return times, steps


def bare(model: DistributedDataParallel, data: Split, steps: int) -> None:
    """The shortest loop: a random order, this rank's part of each batch, forward, backward, step."""
    x, y = torch.tensor(data.x), torch.tensor(data.y)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0)).split(BATCH)  # type: ignore[no-untyped-call]
    for step in range(steps):
        rows = order[step % len(order)].chunk(dist.get_world_size())[dist.get_rank()]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _turns(name: str, turns: int, steps: int) -> Times:
    """Seconds of each turn: the bare loop's, and ours."""
    model = DistributedDataParallel(MODELS[name]())
    recipe = Recipe(build=MODELS[name], optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=LR))
    engine = make_engine(recipe, EngineConfig(engine="ddp"))
    engine.module.load_state_dict(model.module.state_dict())
    rng = np.random.default_rng(0)
    data = Split(x=rng.random((EXAMPLES, 28, 28), np.float32), y=rng.integers(0, 10, EXAMPLES))

    def ours() -> None:
        engine.reset_optimizer()
        for batch in engine.batches(data, batch_size=BATCH, seed=0, steps=steps):
            engine.step(batch)

    times = take_turns((lambda: bare(model, data, steps), ours), turns, seconds_together)
    engine.close()
    return times


def seconds_together(loop: Callable[[], None]) -> float:
    """Of a loop that all ranks begin and end together."""
    dist.barrier()
    start = time.perf_counter()
    loop()
    dist.barrier()
    return time.perf_counter() - start


def _table(times: Mapping[str, Times], ratios: Mapping[str, float], steps: Mapping[str, int]) -> Table:
    rows = []
    for name, both in times.items():
        theirs, ours = (BATCH * steps[name] / median(seconds) for seconds in both)
        rows.append((name, f"{theirs:.0f}", f"{ours:.0f}", f"{ratios[name]:.3f}"))
    header = ("model", "bare samples/s", "our samples/s", "ours over bare")
    return Table(title="Samples a second, both ranks together", header=header, rows=tuple(rows))


def _group_table(costs: Costs) -> Table:
    row = (f"{costs.parameters:,}", f"{costs.cold:.2f}", f"{costs.warm:.3f}", f"{costs.warm / costs.cold:.4f}")
    header = ("parameters", "s from nothing to the first answer", "s of a later round", "ratio")
    return Table(title="A round of a client with two ranks, without its training", header=header, rows=(row,))


if __name__ == "__main__":
    sys.exit(main())
