"""An executor of Ray tasks, on one machine or a cluster: what runs where is Ray's business alone.

Ray maps what lies in its object store into the processes of a machine, and spills it to disk if memory is short: the
model of an exchange, and what each client keeps. fedcore has to be installed on every machine; the app goes along.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.errors import ConfigurationError, WorkerDied
from fedcore.flower.app import AppBundle, FlowerApp
from fedcore.flower.apps.batched_clients import OnFailure, raise_failure
from fedcore.flower.apps.tensor_app import LocalResult, write_state
from fedcore.flower.clientside import Answer
from fedcore.run.plain import app_raised
from fedcore.simulation.workers import ray_task
from fedcore.simulation.workers.executor import InlineExecutor, PlainTask
from fedcore.simulation.workers.pool_messages import FROM_WORKER, Answered, ClientRaised, FromWorker, Made
from fedcore.simulation.workers.scheduling import Costs
from fedcore.state import ModelState
from fedcore.wire.tasks import Task

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_STARTS = 3


@dataclass(slots=True, kw_only=True)
class RayExecutor:
    """Runs the clients of a simulation as tasks of Ray; a context manager, which ends a Ray that it started.

    It joins the Ray that this process has or RAY_ADDRESS names, and starts one otherwise.

    workers
        How many tasks run at once on a Ray that it starts, ConfigurationError for another; 0 for as many as there are
        cores.
    at_once
        0 or 1, since each client is a task.
    """

    app: FlowerApp
    clients: int
    workers: int = 0
    at_once: int = 0
    _ray: Any = field(init=False)
    _started: bool = field(init=False)
    _files: Any = field(init=False)
    _states: dict[int, Any] = field(default_factory=dict, init=False)
    _aggregated_rounds: dict[int, int] = field(default_factory=dict, init=False)
    _costs: Costs = field(default_factory=Costs, init=False)

    def __post_init__(self) -> None:
        if self.at_once > 1:
            raise ConfigurationError(f"{self.at_once} clients at once need --engine process: on Ray each is a task")
        os.environ.update(_ENVIRONMENT)
        try:
            import ray
        except ImportError:
            raise ConfigurationError("Ray is not installed: pip install 'fedcore[simulation]'") from None
        if self.workers and (ray.is_initialized() or os.environ.get("RAY_ADDRESS")):
            raise ConfigurationError(
                f"{self.workers} workers are for a Ray that fedcore starts; the one that is joined here decides itself "
                "how many tasks run at once. Leave --workers out"
            )
        with InlineExecutor(app=self.app, clients=self.clients) as here:
            if here.runner(1).stays_in_process:
                raise ConfigurationError(
                    "the app keeps its clients' optimizers in the process that trains them (optimizer_state="
                    '"keep"), and a task of Ray may run in any: use --engine process'
                )
        self._ray, self._started = ray, not ray.is_initialized()
        if self._started:
            _start(ray, self.workers)
        self._files = ray.put(dict(AppBundle.from_folder(self.app.folder).files))

    @property
    def processes(self) -> int:
        """None: they are Ray's, wherever they are."""
        return 0

    def __enter__(self) -> RayExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self, task: Task, model: ModelState | None, clients: Sequence[int], on_failure: OnFailure = raise_failure
    ) -> Iterator[tuple[int, LocalResult]]:
        """In the order in which they end. What the app's code raises is an AppError; raises WorkerDied."""
        sent = self._ray.put(None if model is None else ray_task.Model.of(model))
        text = task.model_dump_json()
        function = self._remote(ray_task.train)
        for client, result, made in self._done(
            task, clients, lambda one: function.remote(self._files, text, sent, *self._client(one))
        ):
            if isinstance(result, ClientRaised):
                on_failure(client, result.exception())
                continue
            assert isinstance(result, Made)  # noqa: S101 - of a training
            trained: ModelState | None = None if made is None else made.state()
            yield (
                client,
                LocalResult(
                    examples=result.examples,
                    metrics=result.metrics,
                    layout=None if trained is None else trained.layout,
                    write=None if trained is None else write_state(trained),
                    seconds=result.seconds,
                ),
            )

    def answer(self, tasks: Mapping[int, PlainTask]) -> Iterator[tuple[int, Answer | Exception]]:
        """In the order in which they come; raises WorkerDied."""
        if not tasks:
            return
        contents = {one.content: self._ray.put(np.fromfile(one.content, np.uint8)) for one in tasks.values()}
        function = self._remote(ray_task.answer)

        def submitted(client: int) -> Any:
            one = tasks[client]
            sent = contents[one.content]
            return function.remote(self._files, one.task.model_dump_json(), sent, *self._client(client))

        first = next(iter(tasks.values())).task
        for client, result, reply in self._done(first, list(tasks), submitted):
            if isinstance(result, ClientRaised):
                yield client, Answer(error=app_raised(result.reason))
                continue
            assert isinstance(result, Answered)  # noqa: S101 - to a message
            if reply is not None:
                Path(tasks[client].out).write_bytes(reply.tobytes())
            yield (
                client,
                Answer(examples=result.examples, metrics=result.metrics, error=result.error, seconds=result.seconds),
            )

    def count(self, server_round: int, clients: Sequence[int]) -> None:
        """Sent with each client's next task."""
        self._aggregated_rounds.update(dict.fromkeys(clients, server_round))

    def on_warning(self, warn: Callable[[str], None]) -> None:
        """There is nothing to tell."""

    def save(self, folder: Path, clients: Sequence[int]) -> list[int]:
        """Refused: the states are Ray's."""
        raise ConfigurationError("--state does not go with Ray, which has the clients' states; use --engine process")

    def restore(self, states: Mapping[int, Path]) -> None:
        """Refused likewise."""
        self.save(Path(), [])

    def close(self) -> None:
        """Forget the clients' states, and end Ray if it was started here."""
        self._states.clear()
        if self._started:
            self._ray.shutdown()
            self._started = False

    def _remote(self, function: Any) -> Any:
        # A task that is run again would find the state that it has left already.
        return self._ray.remote(function).options(num_returns=3, max_retries=0)

    def _client(self, client: int) -> tuple[ray_task.RayClient, Any]:
        """The task's description of its client, and the reference of the client's state."""
        description = ray_task.RayClient(
            id=client, clients=self.clients, aggregated_round=self._aggregated_rounds.get(client, 0)
        )
        return description, self._states.get(client)

    def _done(self, task: Task, clients: Sequence[int], submit: Any) -> Iterator[tuple[int, FromWorker, Any]]:
        """Run all clients, the longest first; yields the result of each, and the object that came with it."""
        costs = self._costs.expected(task.message_type, clients)
        pending = {}
        for client in sorted(clients, key=lambda one: (-costs[one], one)):
            description, made, self._states[client] = submit(client)
            pending[description] = client, made
        try:
            while pending:
                (ready, *_), _ = self._ray.wait(list(pending), num_returns=1)
                client, made = pending.pop(ready)
                result = FROM_WORKER.validate_json(self._get(ready, client))
                if isinstance(result, Made | Answered):
                    self._costs.learn(task.message_type, client, result.seconds, result.examples or 0)
                yield client, result, self._get(made, client)
        finally:
            for description in pending:
                self._ray.cancel(description, force=True)

    def _get(self, reference: Any, client: int) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            raise WorkerDied(f"Ray lost the task of client {client}: {str(error).strip().splitlines()[0]}") from error


def _start(ray: Any, workers: int) -> None:
    """Join the Ray that RAY_ADDRESS names, or start one on this machine; its tasks find the modules of this process.

    Ray gives its own processes 15 s to start, whatever the machine (https://github.com/ray-project/ray/issues/65983).
    What they read is cached when they start again.
    """
    environment = {
        "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path),
        "FLWR_TELEMETRY_ENABLED": "0",
    }
    runtime = {"env_vars": environment}
    if os.environ.get("RAY_ADDRESS"):
        ray.init(runtime_env=runtime)
        return
    for start in range(1, _STARTS + 1):
        try:
            ray.init(
                num_cpus=workers or None, include_dashboard=False, runtime_env=runtime, _node_ip_address="127.0.0.1"
            )
        except Exception as error:  # Ray has no class for it
            ray.shutdown()
            if start == _STARTS:
                raise WorkerDied(
                    f"Ray did not start, {_STARTS} times: {str(error).strip()} Why is in its raylet.out "
                    "(/tmp/ray/session_latest/logs). Is the machine busy? --engine process needs no Ray"
                ) from error
        else:
            return
