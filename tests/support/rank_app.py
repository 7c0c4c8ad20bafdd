"""A Flower app whose ranks compute together, and fail where they are told to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from io import StringIO
from pathlib import Path

import psutil

PYPROJECT = """
[project]
name = "modes"
version = "1"
[tool.flwr.app.components]
serverapp = "modes:app"
clientapp = "modes:app"
[tool.flwr.app.config]
mode = "ok"
"""

MODES = """
import os, signal, subprocess, sys, time
import torch
from torch import distributed
from torch.utils.data import DataLoader, Dataset
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
calls = 0
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if world > 1:
    # The group is there before the app is loaded.
    assert (distributed.get_rank(), distributed.get_world_size()) == (rank, world)

class Fatal(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)

def total(value):
    tensor = torch.tensor([float(value)])
    if world > 1:
        distributed.all_reduce(tensor)
    return tensor.item()

def fail(mode):
    if mode == "raise":
        raise ValueError("patient 4711 has no age")
    if mode == "exit":
        sys.exit(3)
    if mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "parent":
        print("child", subprocess.Popen(["sleep", "600"]).pid)
    if mode == "hang":
        time.sleep(600)
    if mode == "memory":
        torch.empty(2**58)
    if mode == "loader":
        next(iter(DataLoader(Fatal(), num_workers=1)))

@app.train()
def train(message, context):
    global calls
    calls += 1
    config = context.run_config
    mode, where = config["mode"], config.get("rank", 0)
    if rank == where and not config.get("late", False):
        fail(mode)
    ranks_sum = total(rank + 1)
    if rank == where and config.get("late", False):
        fail(mode)
    if mode == "compute":
        print("computing", flush=True)
        while True:
            total(1)
    print("data in", os.environ.get("FEDCORE_DATA"), "as", context.node_config["site"])
    arrays = ArrayRecord({k: Array(v.numpy() + 1) for k, v in message.content["arrays"].items()})
    metrics = {"num-examples": 7, "calls": float(calls), "pid": float(os.getpid()), "ranks": ranks_sum}
    content = {"arrays": arrays, "metrics": MetricRecord(metrics)}
    if mode == "wrong-records":
        content["more"] = MetricRecord({"num-examples": 7})
    return Message(content=RecordDict(content), reply_to=message)
"""


def write_app(folder: Path) -> Path:
    """Put the app into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "modes.py").write_text(MODES)
    return folder


def alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until_gone(pids: Iterable[int]) -> None:
    """Wait for the end of processes that should end by themselves."""
    deadline = time.monotonic() + 60
    for pid in pids:
        while alive(pid):
            assert time.monotonic() < deadline, f"process {pid} is still there"
            time.sleep(0.02)


async def said(log: StringIO, text: str) -> None:
    """Wait until an agent has said `text`."""
    deadline = time.monotonic() + 100
    while text not in log.getvalue():
        assert time.monotonic() < deadline, f"{text!r} is not in the log:\n{log.getvalue()}"
        await asyncio.sleep(0.02)
