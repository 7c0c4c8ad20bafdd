"""Draws figures/pipeline.png: what each rank of a pipeline does when.

python docs/make_pipeline_figure.py

The order of the work is recorded from real ranks that train a small model. The times are those of a clock on which a
forward pass of one rank's layers takes 1, the backward pass 2, and sending nothing.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
from matplotlib.axes import Axes
from torch import Tensor, nn
from torch.multiprocessing.spawn import start_processes

from fedcore.data.types import Split
from fedcore.run.engine_config import EngineConfig
from fedcore.training.engines import Recipe, World, make_engine
from fedcore.training.engines.stages import ScheduleName

RANKS, MICRO_BATCHES, RUNS = 4, 8, 2
SCHEDULES: tuple[ScheduleName, ...] = ("gpipe", "1f1b", "interleaved")
FIGURE = Path(__file__).parent / "figures" / "pipeline.png"

Order = list[tuple[str, int]]
"""What one rank did: ("F" or "B", number of the stage), one micro-batch after another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A forward ("F") or backward ("B") pass of one micro-batch through one stage."""

    rank: int
    kind: str
    stage: int
    micro_batch: int
    start: Fraction
    end: Fraction


def record(schedule: ScheduleName, micro_batches: int) -> Order:
    """What this rank does in one step of a model of a layer a stage; every rank of the process group calls it."""
    world = World.current()
    runs = RUNS if schedule == "interleaved" else 1
    recipe = Recipe(
        build=lambda: nn.Sequential(*(nn.Linear(2, 2) for _ in range(world.size * runs))),
        optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=0.1),
    )
    engine = make_engine(recipe, EngineConfig(engine="pp", schedule=schedule, micro_batches=micro_batches), world)
    order: Order = []
    for name, layer in engine.module.named_children():
        if isinstance(layer, nn.Linear):
            # The name of a layer in a Sequential is its number, and here that of its stage.
            layer.register_forward_hook(_note(order, "F", int(name)))
            layer.weight.register_post_accumulate_grad_hook(_note(order, "B", int(name)))  # type: ignore[no-untyped-call]
    data = Split(x=np.ones((micro_batches, 2), np.float32), y=np.zeros(micro_batches, np.int64))
    for batch in engine.batches(data, batch_size=0, seed=0, steps=1):
        engine.step(batch)
    return order


def timeline(orders: Sequence[Order], runs: int) -> list[Work]:
    """When each rank does its work, if it begins everything as soon as it can."""
    last = len(orders) * runs - 1
    ends: dict[tuple[str, int, int], Fraction] = {}
    done: list[Work] = []
    waiting = [list(order) for order in orders]
    while any(waiting):
        for rank, order in enumerate(waiting):
            if not order:
                continue
            kind, stage = order[0]
            number = sum((w.kind, w.stage) == (kind, stage) for w in done)
            if kind == "F":
                needed = [("F", stage - 1, number)] if stage else []
            else:
                needed = [("F", stage, number), *([("B", stage + 1, number)] if stage < last else [])]
            if any(key not in ends for key in needed):
                continue
            free = max((w.end for w in done if w.rank == rank), default=Fraction(0))
            start = max([free, *(ends[key] for key in needed)])
            end = start + Fraction(1 if kind == "F" else 2, runs)
            ends[kind, stage, number] = end
            done.append(Work(rank=rank, kind=kind, stage=stage, micro_batch=number, start=start, end=end))
            order.pop(0)
    return done


def idle_fraction(works: Sequence[Work], ranks: int) -> Fraction:
    """The part of the time, over all ranks, in which nothing is computed."""
    busy = sum((work.end - work.start for work in works), Fraction(0))
    return 1 - busy / (ranks * max(work.end for work in works))


def most_kept(works: Sequence[Work], rank: int) -> int:
    """The largest number of forward passes that a rank had done and not yet followed by their backward passes."""
    kept, most = 0, 0
    for work in works:
        if work.rank == rank:
            kept += 1 if work.kind == "F" else -1
            most = max(most, kept)
    return most


def bubble_fraction(name: ScheduleName, *, ranks: int, micro_batches: int, runs: int = 2) -> Fraction:
    """The part of a step's time in which a rank is idle, if all stages take equally long and sending takes no time.

    (p - 1) / (m + p - 1) for "gpipe" (Huang et al. 2019, section 2.3) and "1f1b"; (p - 1) / (v m + p - 1) for
    "interleaved" with v `runs` of layers on each rank and m a multiple of p (Narayanan et al. 2021, section 2.2, who
    divide the idle time by the busy time instead: (p - 1) / (v m)).
    """
    turns = micro_batches * (runs if name == "interleaved" else 1)
    return Fraction(ranks - 1, turns + ranks - 1)


def main() -> None:
    """Record all schedules on real ranks, and draw."""
    mpl.use("Agg")
    figure, axes = plt.subplots(len(SCHEDULES), figsize=(12, 6.4), layout="constrained", sharex=True)
    for schedule, ax in zip(SCHEDULES, axes, strict=True):
        runs = RUNS if schedule == "interleaved" else 1
        works = timeline(_recorded(schedule), runs)
        idle, kept = idle_fraction(works, RANKS), most_kept(works, 0) / runs
        expected = bubble_fraction(schedule, ranks=RANKS, micro_batches=MICRO_BATCHES, runs=runs)
        ax.set_title(
            f"{schedule}: idle {float(idle):.1%} of the time (formula: {expected}); "
            f"rank 0 keeps the activations of up to {kept:g} micro-batches",
            loc="left",
            fontsize=10,
        )
        _draw(ax, works)
    axes[-1].set_xlim(left=0)
    axes[-1].set_xlabel("time (forward pass of a rank's layers = 1, backward pass = 2)")
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=110)


def _note(order: Order, kind: str, stage: int) -> Callable[..., None]:
    def note(*_: Tensor | nn.Module | tuple[Tensor, ...]) -> None:
        order.append((kind, stage))

    return note


def _recorded(schedule: ScheduleName) -> list[Order]:
    """The order of each rank's work, from as many processes."""
    with tempfile.TemporaryDirectory() as folder:
        start_processes(_rank, (schedule, folder), nprocs=RANKS, start_method="fork")  # type: ignore[no-untyped-call]
        return [json.loads((Path(folder) / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(RANKS)]


def _rank(rank: int, schedule: ScheduleName, folder: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    (Path(folder) / f"{rank}.json").write_text(json.dumps(record(schedule, MICRO_BATCHES)), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def _draw(ax: Axes, works: Sequence[Work]) -> None:
    """One lane for each rank; a later run of layers is darker."""
    colours = {"F": ("#9ecae1", "#4292c6"), "B": ("#a1d99b", "#41ab5d")}
    for work in works:
        colour = colours[work.kind][work.stage // RANKS]
        width = float(work.end - work.start)
        ax.barh(work.rank, width, left=float(work.start), height=0.9, color=colour, edgecolor="white", linewidth=0.8)
        ax.text(float(work.start) + width / 2, work.rank, str(work.micro_batch), ha="center", va="center", fontsize=7)
    ax.set_yticks(range(RANKS), [f"rank {rank}" for rank in range(RANKS)])
    ax.invert_yaxis()
    ax.spines[["top", "right"]].set_visible(False)
    for kind, label in (("F", "forward"), ("B", "backward")):
        ax.bar(0, 0, color=colours[kind][0], label=label)
    ax.legend(loc="lower right", fontsize=8, framealpha=1)


if __name__ == "__main__":
    main()
