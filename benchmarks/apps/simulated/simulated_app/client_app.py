"""The ClientApp: trains a model of known size on random examples."""

import os
from pathlib import Path

from fedcore import LocalJob, supervised_app
from fedcore.data import Split

from .task import initial_model, local_data, optimizer
from .timing import time_training

if "FEDCORE_BENCHMARK_TIMES" in os.environ:
    time_training(Path(os.environ["FEDCORE_BENCHMARK_TIMES"]))


def data(job: LocalJob) -> tuple[Split, Split]:
    """Training and test part of this node."""
    config = job.config
    part = local_data(str(config["model"]), int(config["examples"]), int(job.node["partition-id"]))
    return part, part


app = supervised_app(model=initial_model, optimizer=optimizer, data=data)
