"""A Flower app whose ServerApp evaluates, prints, logs and writes a file, beside the tiny app's clients."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.tiny import TINY

SERVER = """
from logging import INFO
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from reporting_app.problem import initial

app = ServerApp()


def evaluate(server_round, arrays):
    print(f"centrally evaluated round {server_round}")
    norm = float(sum(np.square(array.numpy().astype(np.float64)).sum() for array in arrays.values()))
    return MetricRecord({"norm": norm, "steps": [float(server_round)] * 6})


@app.main()
def main(grid, context):
    log(INFO, "own words of the app")

    def evaluate_or_raise(server_round, arrays):
        if server_round == context.run_config["raises"]:
            raise ValueError("no test data")
        return evaluate(server_round, arrays)

    arrays = ArrayRecord({key: Array(np.asarray(value)) for key, value in initial().items()})
    strategy = FedAvg(min_train_nodes=2, min_evaluate_nodes=2, min_available_nodes=2)
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=2, evaluate_fn=evaluate_or_raise)
    Path("curves").mkdir()
    Path("curves/norm.txt").write_text(str(result.evaluate_metrics_serverapp[2]["norm"]))
"""


JUDGING = """
import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fedcore import mean_only
from reporting_app.problem import initial, loss, part

app = ServerApp()


def evaluate(server_round, arrays):
    off = loss(arrays["weight"].numpy(), *part(0, 1))
    return MetricRecord({"accuracy": 1 / (1 + off), "eval_loss": off})


@mean_only
def aggregated(contents, weight_key):
    (*_, last) = contents
    return MetricRecord({"eval_loss": last["metrics"]["eval_loss"], "own": 7.0})


@app.main()
def main(grid, context):
    arrays = ArrayRecord({key: Array(np.asarray(value)) for key, value in initial().items()})
    nodes = {"min_train_nodes": 2, "min_evaluate_nodes": 2, "min_available_nodes": 2}
    strategy = FedAvg(evaluate_metrics_aggr_fn=aggregated, **nodes)
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=2, evaluate_fn=evaluate)
"""
"""A ServerApp that evaluates on all examples, under a name that its clients use, too, whose metrics it aggregates."""


def reporting_app(folder: Path, *, name: str = "reporting_app", raises: int = -1, server: str = SERVER) -> Path:
    """The app, in a new folder. raises: the round in which its evaluation does, unless the run config says another.

    server: the code of its ServerApp.

    name: of its package, another one for each app that one process runs.
    """
    app = folder / "reporting"
    shutil.copytree(TINY, app, ignore=shutil.ignore_patterns("__pycache__"))
    package = (app / "tiny_app").rename(app / name)  # one process may have imported the tiny one
    for path in (app / "pyproject.toml", *package.glob("*.py")):
        path.write_text(path.read_text().replace("tiny_app", name))
    project = app / "pyproject.toml"
    project.write_text(
        project.read_text().replace("[tool.flwr.app.config]", f"[tool.flwr.app.config]\nraises = {raises}")
    )
    (package / "server_app.py").write_text(server.replace("reporting_app", name))
    return app
