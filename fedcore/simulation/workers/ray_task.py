"""One client's task as a function that Ray runs wherever it has a processor free.

Arrays travel through Ray's object store, which maps them into the processes of a machine; all else are strings and
bytes. A client's state is bytes too, so it is wherever Ray puts it, on disk if memory is short, and goes along with
the client's next task.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcore.flower.app import AppBundle, FlowerApp
from fedcore.flower.clientside import ClientRunner
from fedcore.flower.node.config import share_of_client
from fedcore.simulation.workers.pool_messages import Answered, Made
from fedcore.simulation.workers.pool_worker import raised
from fedcore.state import ModelState
from fedcore.wire.tasks import Task

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Model:
    """The tensors of a model: storage arrays, and the names of their dtypes."""

    arrays: Mapping[str, NDArray[Any]]
    dtypes: Mapping[str, str]

    @classmethod
    def of(cls, state: ModelState) -> Model:
        return cls(dict(state.items()), {spec.name: spec.dtype for spec in state.layout.specs})

    def state(self) -> ModelState:
        """Without a copy."""
        return ModelState.from_arrays(dict(self.arrays), dtypes=dict(self.dtypes))


@dataclass(frozen=True, slots=True, kw_only=True)
class RayClient:
    """Which client of how many a task is for, and the last round whose sum it was in."""

    id: int
    clients: int
    aggregated_round: int

    def runner(self, app: FlowerApp, state: Bytes | None, folder: Path) -> ClientRunner:
        """A runner that goes on from `state`, a record file; None for a client that has kept nothing."""
        began = folder / "state"
        if state is not None:
            began.write_bytes(state.tobytes())
        return ClientRunner(
            app=app,
            client_id=self.id,
            node_config=share_of_client(self.id, self.clients),
            aggregated_round=self.aggregated_round,
            began=None if state is None else began,
            durable=False,
        )


def train(
    files: Mapping[str, bytes], task: str, model: Model | None, client: RayClient, state: Bytes | None
) -> tuple[str, Model | None, Bytes | None]:
    """The client's result, a `Made` or a `ClientRaised` as JSON; the new model, and the state afterwards."""
    with tempfile.TemporaryDirectory(prefix="fedcore-") as name:
        folder = Path(name)
        try:
            started = time.monotonic()
            runner = client.runner(_app(_Files(files)), state, folder)
            result = runner.run(Task.model_validate_json(task), model.state() if model is not None else None)
            trained = result.state()
            made = Made(
                client=client.id,
                examples=result.examples,
                metrics=dict(result.metrics),
                file=None,
                seconds=time.monotonic() - started,
            )
            return made.model_dump_json(), None if trained is None else Model.of(trained), _left(runner, state, folder)
        except Exception as error:
            return raised(error, client.id).model_dump_json(), None, state


def answer(
    files: Mapping[str, bytes], task: str, content: Bytes, client: RayClient, state: Bytes | None
) -> tuple[str, Bytes | None, Bytes | None]:
    """The client's reply, an `Answered` or a `ClientRaised` as JSON, the reply's record file, and the state."""
    with tempfile.TemporaryDirectory(prefix="fedcore-") as name:
        folder = Path(name)
        sent, out = folder / "content", folder / "reply"
        sent.write_bytes(content.tobytes())
        try:
            started = time.monotonic()
            runner = client.runner(_app(_Files(files)), state, folder)
            result = runner.answer(Task.model_validate_json(task), sent, out)
            answered = Answered(
                client=client.id,
                examples=result.examples,
                metrics=dict(result.metrics),
                error=result.error,
                seconds=time.monotonic() - started,
            )
            reply = np.fromfile(out, np.uint8) if out.exists() else None
            return answered.model_dump_json(), reply, _left(runner, state, folder)
        except Exception as error:
            return raised(error, client.id).model_dump_json(), None, state


def _left(runner: ClientRunner, state: Bytes | None, folder: Path) -> Bytes | None:
    """The state after the task."""
    file = folder / "left"
    return np.fromfile(file, np.uint8) if runner.leave(file) else state


class _Files:
    """The files of an app, alike for all tasks of a process as long as Ray hands out the same."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.bundle = AppBundle(dict(files))
        self._hash = self.bundle.sha256

    def __hash__(self) -> int:
        return hash(self._hash)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Files) and self._hash == other._hash


@cache
def _app(files: _Files) -> FlowerApp:
    """The app from a copy of its files, which this process keeps."""
    folder = Path(tempfile.mkdtemp(prefix="fedcore-app-")) / "app"
    files.bundle.write(folder)
    return FlowerApp.load(folder)
