"""What a step of an app's model costs on this machine, for the simulated clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from fedcore.compare.network import Cost
from fedcore.compare.problem import Problem
from fedcore.training.engines import Engine, EngineConfig, World, make_engine
from fedcore.training.engines.batches import Rows, TrainingData

WARM_STEPS = 3
REPETITIONS = 25
SECONDS = 3.0
"""Of measuring one batch size, after the first few steps."""


def measure_cost(problem: Problem, *, timer: Callable[[], float] = time.perf_counter) -> Cost:
    """Time real steps of the app's model, on one thread, with the batch of its run config and an eighth of it.

    The data are the first site's; the weights are what `build` gives. A step counts as the lower quartile of its
    repetitions, since whatever else the machine does can only make it longer.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        data = problem.training(0)
        large = min(problem.schedule.batch_size or problem.schedule.counts[0], problem.schedule.counts[0])
        engine = make_engine(problem.recipe(), EngineConfig(), World(device=World.current().device))
        sizes = sorted({max(1, large // 8), large})
        try:
            engine.model.train()
            return fit_cost([(size, _seconds(engine, data, size, timer)) for size in sizes])
        finally:
            engine.close()
    finally:
        torch.set_num_threads(threads)


def fit_cost(measured: list[tuple[int, float]]) -> Cost:
    """Least squares over (examples, seconds) of one or two steps, with neither part of the cost below 0."""
    (n1, t1), (n2, t2) = measured[0], measured[-1]
    if n1 == n2 or t2 <= t1:
        return Cost(step=(t1 + t2) / 2, example=0.0)
    example = (t2 - t1) / (n2 - n1)
    if (step := t1 - example * n1) >= 0:
        return Cost(step=step, example=example)
    return Cost(step=0.0, example=(n1 * t1 + n2 * t2) / (n1**2 + n2**2))


def _seconds(engine: Engine, data: TrainingData, size: int, timer: Callable[[], float]) -> float:
    """Of one step on `size` examples, reading and collating them included."""
    generator = torch.Generator().manual_seed(0)
    examples = len(data)  # type: ignore[arg-type]
    orders = (torch.randperm(examples, generator=generator)[:size] for _ in range(WARM_STEPS + REPETITIONS))
    batches = engine.read(data, (Rows(order, size) for order in orders))
    for _ in range(WARM_STEPS):
        engine.step(next(batches))
    seconds: list[float] = []
    end = timer() + SECONDS
    while len(seconds) < REPETITIONS and (len(seconds) < WARM_STEPS or timer() < end):
        start = timer()
        # What was read from the device is there: an accelerator has then done the step.
        float(engine.step(next(batches)))
        seconds.append(timer() - start)
    return statistics.quantiles(seconds, n=4)[0]
