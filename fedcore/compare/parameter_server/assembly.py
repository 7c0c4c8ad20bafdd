"""Whole models out of the pieces that the shards kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fedcore.compare.parameter_server.keys import FlatModel, KeyRanges
from fedcore.compare.parameter_server.tasks import Task
from fedcore.compare.training import snapshot
from fedcore.compare.workers import ReportSink
from fedcore.state import ModelState
from fedcore.state.files import FileSink


def assemble(report: ReportSink, task: Task, rounds: Sequence[int]) -> None:
    """Write the models of some rounds, each with the tensors of the initial one; reports "model" with its size."""
    engine = task.engine(task.problem(), torch.device("cpu"))
    names = list(ModelState.open(task.initial))
    ranges = KeyRanges.of(engine.module, shards=task.shards)
    flat = FlatModel(engine.module, ranges)
    for number in rounds:
        pieces = [np.load(task.piece(number, shard)) for shard in range(task.shards)]
        flat.write(torch.from_numpy(np.concatenate(pieces)), buffers=True)
        with FileSink(snapshot(task.run.folder, number), engine.layout(only=names)) as sink:
            engine.save(sink, only=names)
    report("model", {"parameters": ranges.trained})
