"""Push-pull pairs a second: torch.distributed, Ray actors, and our parameter server over the first.

    python benchmarks/ps_engine.py [--quick] [--json]

A worker sends a vector and gets one of the same size back, again and again, without computing anything; one server
process serves all workers. Four ways to do it:

- gloo: a two-rank group for each worker, a thread each at the server, vectors as they are: what the engine can carry.
- gloo, add: the same with the shortest server that trains, which adds each vector to the model under a lock.
- ours: the server of `fedcore.comparison.parameter_server` with one shard: its headers, its order of messages, its
count of staleness, and SGD by torch.optim.
- Ray: a server actor that adds each vector to the model, and worker actors that call it.

The first three take turns, each with new processes; Ray has one cluster for all of its turns. The figure is the median
over the turns of the ratio of our server to the shortest server that trains.
"""

from __future__ import annotations

import argparse
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Final

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from torch import Tensor, nn

from benchmarks.common import Figure, Report, Table, parser, quiet_environment, run, say, sized
from benchmarks.ps_ray import RAY_ENVIRONMENT, Rate, push_pull_on_ray
from fedcore.comparison.parameter_server.messages import Pair, PushPullRequest, be_local, new_header
from fedcore.comparison.parameter_server.server import Arrived, LeadingShard, ShardProcess, WorkerThread
from fedcore.comparison.parameter_server.shard import KeyRanges, ModelShard
from fedcore.comparison.parameter_server.update_order import Push, UpdateOrder
from fedcore.comparison.parameter_server.worker import ServerLink
from fedcore.comparison.workers.processes import ReportSink, WorkerReport, Workers

SIZES: Final = {"4 MB": 1_000_000, "40 KB": 10_000}
PAIRS: Final = {"4 MB": 60, "40 KB": 600}
WORKERS: Final = (1, 2, 4)
FIGURE: Final = ("4 MB", 2)
AIM: Final = 0.8
LR: Final = 0.01
FLOOR: Final = "gloo, add"
WAYS: Final = ("gloo", FLOOR, "ours")
_SILENCE: Final = 120.0

Rates = dict[tuple[str, int, str], list[float]]
"""Size, workers and way -> push-pull pairs a second in each turn."""


def main() -> int:
    """The command line."""
    options = parser("Push-pull pairs a second: gloo pairs, Ray actors, our parameter server.")
    options.add_argument("--turns", type=int, help="turns of each way")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """All sizes and numbers of workers; in the quick mode those of the figure alone."""
    turns = arguments.turns or sized(arguments, smallest=1, quick=3, whole=7)
    pairs = pairs_of(arguments)
    cells = [FIGURE] if arguments.quick else [(size, count) for size in SIZES for count in WORKERS]
    rates: Rates = {}
    for size, count in cells:
        say(f"{size}, {count} workers: {turns} turns of {', '.join(WAYS)}, and Ray")
        measure_turns(rates, size, count, turns, pairs)
        rates[size, count, "Ray"] = [] if arguments.smallest else measure_ray(size, count, turns)
    return Report(
        benchmark="ps_engine",
        figures=tuple(_figures(rates)),
        tables=(_table(rates, cells),),
        notes=(
            "a pair is one vector there and one back; medians over the turns",
            "the figure is for two workers and 4 MB",
        ),
    )


def pairs_of(arguments: argparse.Namespace) -> Mapping[str, int]:
    """Of a turn, by the size of a vector."""
    return dict.fromkeys(PAIRS, 2) if arguments.smallest else PAIRS


def push_over_engine(turns: int, pairs: Mapping[str, int]) -> list[Figure]:
    """The figure alone: our push-pull pairs a second over those of the shortest server on the same engine."""
    rates: Rates = {}
    measure_turns(rates, *FIGURE, turns, pairs, ways=(FLOOR, "ours"))
    return _figures(rates)


def measure_turns(
    rates: Rates, size: str, count: int, turns: int, pairs: Mapping[str, int], *, ways: tuple[str, ...] = WAYS
) -> None:
    """Let the ways over gloo take turns; the order turns round, and a first turn warms the machine up."""
    for turn in range(-1, turns):
        for way in ways if turn % 2 == 0 else reversed(ways):
            rate = _rate(way, SIZES[size], count, pairs[size])
            if turn >= 0:
                rates.setdefault((size, count, way), []).append(rate)


def _rate(way: str, size: int, count: int, pairs: int) -> float:
    with tempfile.TemporaryDirectory(prefix="fedcore-ps-") as name, Workers(Path(name), quiet_environment()) as workers:
        folder = Path(name)
        workers.start("server", serve_ours if way == "ours" else serve_bare, folder, size, count, pairs, way != "gloo")
        for worker in range(count):
            workers.start(f"worker-{worker}", push_pull, folder, worker, size, pairs)
        return _together(
            pairs, [event.report for event in workers.events(silence=_SILENCE) if isinstance(event.report, PairTimes)]
        )


def _together(pairs: int, times: list[PairTimes]) -> float:
    """Pairs of all workers over the time from the first start to the last end."""
    seconds: float = max(part.end for part in times) - min(part.start for part in times)
    return len(times) * pairs / seconds


# --- one worker, the same for all ways over gloo --------------------------------------------------------------------


class PairTimes(WorkerReport):
    """When a worker started and ended, on the clock of the machine."""

    start: float
    end: float


def push_pull(report: ReportSink, folder: Path, worker: int, size: int, pairs: int) -> None:
    """Push and pull; the first answer comes when all workers are there."""
    be_local()
    ranges = KeyRanges.of(_model(size), shards=1)
    link = ServerLink([Pair.join(folder / str(worker), "the server", seconds=_SILENCE)], ranges)
    link.gradient.fill_(1.0)
    link.send(PushPullRequest(None, 0.0))
    link.receive()
    start = time.monotonic()
    for number in range(1, pairs + 1):
        last = number == pairs
        link.send(PushPullRequest(Push(examples=1, total=1, loss=0.0, last=last), 0.0))
        if last:
            link.released()
        else:
            link.receive()
    report(PairTimes(start=start, end=time.monotonic()))


def _model(size: int) -> nn.Module:
    return nn.ParameterList([nn.Parameter(torch.zeros(size))])


# --- servers --------------------------------------------------------------------------------------------------------


def serve_ours(report: ReportSink, folder: Path, size: int, count: int, pairs: int, adds: bool) -> None:
    """The leading shard of a server without others."""
    del pairs, adds
    be_local()
    model = _model(size)
    ranges = KeyRanges.of(model, shards=1)
    shard = ModelShard(model, lambda module: torch.optim.SGD(module.parameters(), lr=LR), ranges, 0)
    inbox: queue.SimpleQueue[Arrived] = queue.SimpleQueue()
    threads = [WorkerThread(worker, folder / str(worker), _SILENCE, size, inbox) for worker in range(count)]
    process = ShardProcess(shard, threads, lambda number: folder / "model.npy")
    order = UpdateOrder.of(count, bound=float("inf"), together=False, round_samples=1 << 60)
    LeadingShard(process, order, [], inbox, report, 4 * size, None).run()
    process.close()


def serve_bare(report: ReportSink, folder: Path, size: int, count: int, pairs: int, adds: bool) -> None:
    """A thread for each worker that takes a vector and sends one."""
    del report
    be_local()
    values, lock, line = torch.zeros(size), threading.Lock(), threading.Barrier(count)

    def add(vector: Tensor) -> None:
        with lock:
            values.add_(vector, alpha=-LR)
            vector.copy_(values)

    def serve(worker: int) -> None:
        pair, header, vector = (
            Pair.serve(folder / str(worker), f"worker {worker}", seconds=_SILENCE),
            new_header(),
            torch.zeros(size),
        )
        pair.receive(header)
        line.wait()
        for _ in range(pairs):
            pair.send(header, vector)
            pair.receive(header, vector)
            if adds:
                add(vector)
        pair.send(header)

    threads = [threading.Thread(target=serve, args=(worker,)) for worker in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure_ray(size: str, count: int, turns: int) -> list[float]:
    """Pairs a second in each turn; empty if Ray is not installed."""
    environment = {**quiet_environment(), **RAY_ENVIRONMENT}
    with tempfile.TemporaryDirectory(prefix="fedcore-ps-") as name, Workers(Path(name), environment) as workers:
        reports = workers.call("ray", push_pull_on_ray, SIZES[size], count, PAIRS[size], turns, silence=_SILENCE)
    return [report.rate for report in reports if isinstance(report, Rate)]


# --- the report -----------------------------------------------------------------------------------------------------


def _figures(rates: Rates) -> list[Figure]:
    engine, ours = rates[(*FIGURE, FLOOR)], rates[(*FIGURE, "ours")]
    ratio = median(mine / its for mine, its in zip(ours, engine, strict=True))
    return [Figure(name="ps_push_over_engine", value=ratio, aim=AIM, at_least=True)]


def _table(rates: Rates, cells: list[tuple[str, int]]) -> Table:
    ways = (*WAYS, "Ray")
    rows = []
    for size, count in cells:
        found = [rates[size, count, way] for way in ways]
        rows.append((size, str(count), *(f"{median(values):.0f}" if values else "-" for values in found)))
    return Table(title="Push-pull pairs a second", header=("vector", "workers", *ways), rows=tuple(rows))


if __name__ == "__main__":
    sys.exit(main())
