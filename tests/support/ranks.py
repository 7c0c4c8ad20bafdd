"""A group of gloo ranks that stays: tests run functions on all of its ranks and compare what comes back.

The ranks are made by a fork server that has torch imported already, so that a group costs a tenth of a second and not
some seconds of imports for each rank.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fedcore.system.process_group import join
from fedcore.system.workers.starting import start_as_usual
from tests.support.forking import CONTEXT

# Longer than a test may take: a rank that waits for a slow one is told so by the test's own deadline.
COLLECTIVE_SECONDS = 900.0


class RankFailed(AssertionError):
    """A rank raised, ended or was not done in time; the text says which, with its traceback."""


class Ranks:
    """`size` ranks in one process group. Use as a context manager.

    device: "cuda" for ranks that see the GPUs, and meet as those of a client do: over NCCL, where each has its own.
    After a failure all ranks are ended, and the next `run` starts a new group.
    """

    def __init__(self, size: int, *, seconds: float = 600.0, device: str = "cpu") -> None:
        self.size = size
        self.device = device
        self.seconds = seconds
        self._processes: list[Any] = []
        self._channels: list[Connection] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call `function(*arguments)`, of a module's top level, on every rank; what each returned, by rank.

        Raises RankFailed with the first failure.
        """
        if not self._processes:
            self._start()
        for channel in self._channels:
            channel.send((function, arguments))
        deadline = time.monotonic() + self.seconds
        answers: dict[int, Any] = {}
        try:
            while len(answers) < self.size:
                self._take(answers, deadline)
        except BaseException:
            self._end()
            raise
        return [answers[rank] for rank in range(self.size)]

    def _take(self, answers: dict[int, Any], deadline: float) -> None:
        open_channels = {channel: rank for rank, channel in enumerate(self._channels) if rank not in answers}
        ready = wait(list(open_channels), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            raise RankFailed(f"ranks {sorted(open_channels.values())} were not done within {self.seconds:g} s")
        for channel in ready:
            rank = open_channels[channel]  # type: ignore[index]
            try:
                fine, answer = channel.recv()  # type: ignore[union-attr]
            except EOFError:
                raise RankFailed(f"rank {rank} ended without an answer") from None
            if not fine:
                raise RankFailed(f"rank {rank} failed:\n{answer}")
            answers[rank] = answer

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        meeting = Path(self._folder.name) / "store"
        for rank in range(self.size):
            ours, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(
                target=_serve, args=(theirs, rank, self.size, str(meeting), self.device, sys.path)
            )
            process.start()
            theirs.close()
            self._channels.append(ours)
            self._processes.append(process)

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(10)
        for channel in self._channels:
            channel.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._processes, self._channels, self._folder = [], [], None


def _serve(channel: Connection, rank: int, size: int, meeting: str, device: str, path: list[str]) -> None:
    """A rank's process: does as it is told until the channel closes."""
    sys.path[:] = path
    start_as_usual()
    # No look-up of the machine's own name, which needs not lead anywhere.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    # Nor processes of their own for torch.compile, which would stay when a rank is killed.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    torch.set_num_threads(1)
    if device == "cuda":
        join(dist.FileStore(meeting, size), rank=rank, world_size=size, local_rank=rank, local_world_size=size)
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        dist.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=rank, world_size=size,
            timeout=timedelta(seconds=COLLECTIVE_SECONDS),
        )  # fmt: skip
    while True:
        try:
            function, arguments = channel.recv()
        except EOFError:
            break
        try:
            answer = (True, function(*arguments))
        except BaseException:
            answer = (False, traceback.format_exc())
        channel.send(answer)
    # Some ranks abort in the destructors of the process group; nothing is left to be tidied up.
    os._exit(0)
