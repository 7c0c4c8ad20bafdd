"""Groups of gloo ranks for the benchmarks, each rank a fresh process."""

from __future__ import annotations

import gc
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist

import fedcore.comparison.workers.processes  # noqa: F401 - says what the fork server has loaded

Result = TypeVar("Result")
COLLECTIVE_SECONDS = 300.0
Start = Literal["forkserver", "spawn"]
"""forkserver: forked from a process that has torch loaded, as the workers of a comparison are. spawn: from nothing, so
that a rank's memory is its own."""


def on_ranks(size: int, function: Callable[..., Result], *arguments: Any, start: Start = "forkserver") -> list[Result]:
    """Call `function(*arguments)`, of a module's top level, on `size` new ranks; what each returned, by rank."""
    with (
        tempfile.TemporaryDirectory(prefix="fedcore-ranks-") as folder,
        ProcessPoolExecutor(size, mp_context=multiprocessing.get_context(start)) as pool,
    ):
        # No rank returns before all have met, so each of them gets a process.
        ranks = [pool.submit(_serve, rank, size, Path(folder) / "store", function, arguments) for rank in range(size)]
        return [rank.result() for rank in ranks]


def _serve(rank: int, size: int, store: Path, function: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size,
        timeout=timedelta(seconds=COLLECTIVE_SECONDS),
    )  # fmt: skip
    try:
        result = function(*arguments)
        gc.collect()
        dist.barrier()
        return result
    finally:
        dist.destroy_process_group()
