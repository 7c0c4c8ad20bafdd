"""Run an app in Flower's own simulation, in a process of its own, and save the final global model.

python flower_simulation.py APP_DIR NODES OUT.npz [ROUNDS]

Flower's command line wants a SuperLink for this; the engine underneath is the same.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"

import numpy as np
from flwr.app import Context, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp.strategy import Result, Strategy
from flwr.simulation.run_simulation import _run_simulation
from flwr.supercore.constant import NOOP_FEDERATION_ID
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.supercore.telemetry import EventType

from fedcore.flower.app import FlowerApp

RUN_ID = 1
ONE_ACTOR = {"num_cpus": 1, "include_dashboard": False}
"""What Ray is started with: each further actor would import torch, for seconds of the processor, and train a moment."""


def simulate(folder: Path, nodes: int, rounds: int) -> Result:
    """The result of the app's strategy after `rounds` rounds over `nodes` nodes."""
    # All nodes, or round one may begin with those that registered first.
    config = {"num-server-rounds": rounds, "min-nodes": nodes}
    results: list[Result] = []
    original = Strategy.start

    def start(self: Strategy, *args: Any, **kwargs: Any) -> Result:
        results.append(original(self, *args, **kwargs))
        return results[-1]

    Strategy.start = start
    run_app(FlowerApp.load(folder), nodes, config)
    return results[0]


def run_app(app: FlowerApp, nodes: int, config: dict[str, Any], *, ray: bool = True) -> None:
    """Run an app to its end; `config` goes over its run config. Without `ray` `flower_threads` stands in for it."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN_ID, SUPERLINK_NODE_ID, RUN_ID
    run = Run.create_empty(RUN_ID)
    run.override_config = config
    run.primary_task_id = RUN_ID
    run.federation_id = NOOP_FEDERATION_ID
    if ray:
        start_ray()
    _run_simulation(
        num_supernodes=nodes,
        exit_event=EventType.PYTHON_API_RUN_SIMULATION_LEAVE,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}},
        client_app_attr=app.clientapp,
        server_app_attr=app.serverapp,
        server_app_context=Context(RUN_ID, SUPERLINK_NODE_ID, {}, RecordDict(), {**app.run_config, **config}),
        app_dir=str(app.folder),
        run=run,
        is_app=True,
    )


def start_ray() -> None:
    """Flower joins a Ray that is there. On a busy machine Ray's own processes are too slow for it, the first time."""
    import ray

    if ray.is_initialized():
        return
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH")]))
    for start in range(3):
        try:
            ray.init(runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}}, **ONE_ACTOR)
        except Exception:
            ray.shutdown()
            if start == 2:
                raise
        else:
            return


def main() -> None:
    """Run and save."""
    folder, nodes, out = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    sys.path.insert(0, str(folder.resolve()))
    result = simulate(folder, nodes, int(sys.argv[4]) if len(sys.argv) > 4 else 1)
    np.savez(out, **{name: array.numpy() for name, array in result.arrays.items()})


if __name__ == "__main__":
    main()
