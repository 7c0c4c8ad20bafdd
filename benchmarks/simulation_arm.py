"""One arm of `benchmarks/simulation.py`: a process that simulates round after round, each on request.

Between two rounds an arm says what the last one took, and waits; so arms take turns, round by round, and the machine
treats all of them alike. A round lasts from one `configure_train` of Flower's strategy to the next, or from one turn of
the loop to the next if there is no strategy.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import psutil

ROUNDS: Final = 1000
"""More than any arm is asked for; it is ended before."""
TIMES: Final = "FEDCORE_BENCHMARK_TIMES"
"""Names the folder into which the app's processes write how long they trained (`simulated_app.timing`)."""


class Gate:
    """Where an arm waits for its turn. times: folder of files with seconds of training, one a process."""

    def __init__(self, descriptor: int, times: Path | None) -> None:
        self._lines = socket.socket(fileno=descriptor).makefile("rw", encoding="utf-8")
        self._times = times
        self._started: tuple[float, float, float] | None = None

    def turn(self) -> None:
        """A round is over, unless it is the first that begins; wait for the next."""
        if self._started is not None:
            now = time.perf_counter(), tree_seconds(), _trained(self._times)
            wall, processor, trained = (after - before for after, before in zip(now, self._started, strict=True))
            self._say({"wall": wall, "processor": processor, "trained": trained, "memory": tree_memory()})
        else:
            self._say({"ready": True})
        self._lines.readline()
        processor, trained = tree_seconds(), _trained(self._times)  # to ask for these takes milliseconds
        self._started = time.perf_counter(), processor, trained

    def _say(self, told: Mapping[str, Any]) -> None:
        self._lines.write(json.dumps(told) + "\n")
        self._lines.flush()


def tree_seconds() -> float:
    """Processor seconds of this process, its descendants, and those that have ended."""
    total = 0.0
    for process in _tree():
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += sum(times[:4])  # user and system, also of children that were waited for
    return total


def tree_memory() -> int:
    """Bytes in memory of this process and its descendants, pages that several share counted once."""
    total = 0
    for process in _tree():
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total


def _tree() -> list[psutil.Process]:
    own = psutil.Process()
    return [own, *own.children(recursive=True)]


def _trained(folder: Path | None) -> float:
    return sum(float(file.read_text() or 0) for file in folder.glob("*.seconds")) if folder else 0.0


# --- the arms -------------------------------------------------------------------------------------------------------


def fedcore(gate: Gate, told: Mapping[str, Any]) -> None:
    """`fedcore.simulate`."""
    import fedcore as package

    # It notes which functions are Flower's own, before one is put in another's place.
    import fedcore.flower.grid.aggregation_guard

    _gated_strategies(gate)
    package.simulate(
        told["app"],
        clients=told["clients"],
        engine=told["engine"],
        workers=told.get("workers", 0),
        clients_at_once=told.get("at_once", 0),
        aggregation=told["aggregation"],
        drop=told.get("drop", 0.0),
        run_config={**told["config"], "num-server-rounds": ROUNDS},
        settings=told.get("settings"),
        progress=False,
    )


def flower(gate: Gate, told: Mapping[str, Any]) -> None:
    """Flower's simulation of the same app on Ray, one processor for each of its actors, so that all have work."""
    from flwr.app import Context, RecordDict
    from flwr.common.constant import SUPERLINK_NODE_ID
    from flwr.simulation.run_simulation import _run_simulation
    from flwr.supercore.constant import NOOP_FEDERATION_ID
    from flwr.supercore.run import Run
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.supercore.telemetry import EventType

    from fedcore.flower.app import FlowerApp

    _gated_strategies(gate)
    app = FlowerApp.load(Path(told["app"]))
    sys.path.insert(0, str(app.folder))
    # All nodes, or round one may begin with those that registered first.
    config = {**told["config"], "num-server-rounds": ROUNDS, "min-nodes": told["clients"]}
    number = 1
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = number, SUPERLINK_NODE_ID, number
    run = Run.create_empty(number)
    run.override_config = config
    run.primary_task_id, run.federation_id = number, NOOP_FEDERATION_ID
    _run_simulation(  # what `flwr run` and `run_simulation` call; the first would want a SuperLink
        num_supernodes=told["clients"],
        exit_event=EventType.PYTHON_API_RUN_SIMULATION_LEAVE,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}, "init_args": {}},
        client_app_attr=app.clientapp,
        server_app_attr=app.serverapp,
        server_app_context=Context(number, SUPERLINK_NODE_ID, {}, RecordDict(), {**app.run_config, **config}),
        app_dir=str(app.folder),
        run=run,
        is_app=True,
    )


def bare(gate: Gate, told: Mapping[str, Any]) -> None:
    """The same clients in plain torch, one after the other in this process: nothing but training and a mean."""
    import torch

    from benchmarks.apps.simulated.simulated_app.task import initial_model, local_data

    torch.set_num_threads(1)
    config = told["config"]
    model = initial_model({"seed": 42, **config})
    parameters = list(model.parameters())
    examples, batch, lr = int(config["examples"]), int(config["batch-size"]), float(config["lr"])
    world = [parameter.detach().clone() for parameter in parameters]
    for number in range(ROUNDS):
        gate.turn()
        mean = [torch.zeros_like(one) for one in world]
        for place in range(told["per_round"]):
            split = local_data(str(config["model"]), examples, (number * told["per_round"] + place) % told["clients"])
            x, y = torch.from_numpy(split.x), torch.from_numpy(split.y)
            with torch.no_grad():
                for parameter, value in zip(parameters, world, strict=True):
                    parameter.copy_(value)
            optimizer = torch.optim.SGD(parameters, lr=lr)
            for rows in torch.split(torch.randperm(examples), batch):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            with torch.no_grad():
                for sum_, parameter in zip(mean, parameters, strict=True):
                    sum_.add_(parameter, alpha=1 / told["per_round"])
        world = mean


def pfl(gate: Gate, told: Mapping[str, Any]) -> None:
    """pfl-research, as its CIFAR-10 benchmark sets it up, without its evaluations."""
    sys.path.insert(0, told["packages"])
    os.environ["PFL_PYTORCH_DEVICE"] = "cpu"
    import types

    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByUser
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    from benchmarks.apps.simulated.simulated_app.task import initial_model, local_data

    torch.set_num_threads(told["threads"])
    config = told["config"]

    def loss(self: Any, x: Any, y: Any, eval: bool = False) -> Any:
        self.eval() if eval else self.train()
        return torch.nn.functional.cross_entropy(self(x), y)

    module: Any = initial_model({"seed": 42, **config})
    module.loss = types.MethodType(loss, module)
    module.metrics = types.MethodType(lambda self, x, y, eval=True: {"none": Weighted(0.0, 1)}, module)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0))

    def dataset(client: int) -> Any:
        split = local_data(str(config["model"]), int(config["examples"]), client)
        return Dataset((torch.from_numpy(split.x), torch.from_numpy(split.y)), user_id=str(client))

    users = FederatedDataset(dataset, get_user_sampler("minimize_reuse", list(range(told["clients"]))))
    backend = SimulatedBackend(users, users, postprocessors=[WeightByUser()])

    class Turns(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
            gate.turn()
            return False, Metrics()

    gate.turn()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=ROUNDS,
            evaluation_frequency=ROUNDS,  # the first, which always comes, is in the first round
            train_cohort_size=told["per_round"],
            val_cohort_size=0,
        ),
        backend,
        model,
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=float(config["lr"]), local_batch_size=int(config["batch-size"])
        ),
        callbacks=[Turns()],
    )


def _gated_strategies(gate: Gate) -> None:
    """Every strategy of Flower, under whichever simulation, waits for its turn before it asks anybody to train."""
    from flwr.serverapp.strategy import Strategy

    original = Strategy.start

    def start(self: Any, *arguments: Any, **named: Any) -> Any:
        configure = self.configure_train

        def gated(*arguments: Any, **named: Any) -> Any:
            gate.turn()
            return configure(*arguments, **named)

        self.configure_train = gated
        return original(self, *arguments, **named)

    Strategy.start = start  # type: ignore[method-assign]


ARMS: Final[Mapping[str, Callable[[Gate, Mapping[str, Any]], None]]] = {
    "fedcore": fedcore,
    "flower": flower,
    "bare": bare,
    "pfl": pfl,
}


def main(arguments: Sequence[str]) -> int:
    """One arm, of which the first argument tells in JSON; the second is the descriptor of its gate."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("told", type=json.loads)
    options.add_argument("descriptor", type=int)
    given = options.parse_args(arguments)
    times = Path(os.environ[TIMES]) if TIMES in os.environ else None
    ARMS[given.told["arm"]](Gate(given.descriptor, times), given.told)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
