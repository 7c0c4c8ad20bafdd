"""The shortest parameter server of Ray actors, for `ps_engine.py`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from fedcore.comparison.workers.processes import ReportSink, WorkerReport

RAY_ENVIRONMENT: Final = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
_LR: Final = 0.01


class Rate(WorkerReport):
    """Pairs of push and pull a second."""

    rate: float


def push_pull_on_ray(report: ReportSink, size: int, count: int, pairs: int, turns: int) -> None:
    """One server, `count` workers, vectors of `size` float32; reports a `Rate` for each turn after one to warm up.

    Reports nothing if Ray is not installed.
    """
    try:
        import ray
    except ImportError:
        return
    with _cluster(ray, count + 1):
        server_class, worker_class = _actors(ray)
        server = server_class.remote(size)
        workers = [worker_class.remote(size) for _ in range(count)]
        for turn in range(-1, turns):
            times = ray.get([worker.push_pull.remote(server, pairs) for worker in workers])
            seconds = max(end for _, end in times) - min(start for start, _ in times)
            if turn >= 0:
                report(Rate(rate=count * pairs / seconds))


@contextmanager
def _cluster(ray: Any, cpus: int) -> Iterator[None]:
    ray.init(
        num_cpus=cpus,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=512 << 20,
        _node_ip_address="127.0.0.1",
    )
    try:
        yield
    finally:
        ray.shutdown()


def _actors(ray: Any) -> tuple[Any, Any]:
    """Classes of a function travel as a whole; Ray's processes need not find this module."""

    class Server:
        def __init__(self, size: int) -> None:
            self._values = np.zeros(size, np.float32)

        def push_pull(self, vector: Any) -> Any:
            self._values -= np.float32(_LR) * vector
            return self._values

    class Worker:
        def __init__(self, size: int) -> None:
            self._vector = np.ones(size, np.float32)

        def push_pull(self, server: Any, pairs: int) -> tuple[float, float]:
            ray.get(server.push_pull.remote(self._vector))
            start = time.monotonic()
            for _ in range(pairs):
                ray.get(server.push_pull.remote(self._vector))
            return start, time.monotonic()

    return ray.remote(Server), ray.remote(Worker)
