"""Centralized training of a Flower app: its ClientApp on the pooled data, in a process of its own.

The app's ServerApp runs as it is, so that the initial model, the rounds and the configuration are the same. There is
one partition that holds everything, and each round's training starts from the model of the round before. With a
strategy that averages (FedAvg) this is plain centralized training for the same number of samples.

Run as `python -m fedcore.compare.centralized APP_DIR`; it prints the events of the run as JSON lines.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedcore.config import JobSettings, override
from fedcore.errors import FedcoreError
from fedcore.flower.app import FlowerApp
from fedcore.flower.bundle import AppBundle
from fedcore.flower.clientside import ClientRunner
from fedcore.flower.serverside import run_server_app
from fedcore.record import EventSink
from fedcore.round import ExchangeReply, ExchangeRequest, make_task
from fedcore.simulate import model_ref
from fedcore.wire import Scalar

POOL = "pooled"
# Nobody sends anything here, so there is nothing to protect.
PLAIN = JobSettings(aggregation="plain")


@dataclass(slots=True, kw_only=True)
class PooledBackend:
    """An `ExchangeBackend` in which all clients are one process with all the data.

    clients: how many nodes the ServerApp is told of, so that it need not know.
    """

    app: FlowerApp
    clients: int
    run_config: Mapping[str, Scalar]
    emit: EventSink
    _runner: ClientRunner = field(init=False)
    _app_sha256: str = field(init=False)
    _exchange: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._runner = ClientRunner(app=self.app, client_id=1, node_config={"partition-id": 0, "num-partitions": 1})
        self._app_sha256 = AppBundle.from_folder(self.app.folder).sha256

    def nodes(self) -> list[int]:
        return list(range(1, self.clients + 1))

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        """Do the work once, on all the data."""
        started = time.monotonic()
        self._exchange += 1
        task = make_task(
            request,
            settings=replace(PLAIN, train_seconds=self.app.settings.train_seconds),
            run="centralized",
            exchange=self._exchange,
            attempt=1,
            cohort=[1],
            app_sha256=self._app_sha256,
            run_config=self.run_config,
            model=model_ref(request.model),
            encoding=None,
        )
        result = self._runner.run(task, request.model)
        self.emit("exchange-done", self._done(request, result.examples, result.metrics, time.monotonic() - started))
        return [ExchangeReply(node=0, state=result.state(), examples=result.examples, metrics=result.metrics)]

    def _done(
        self, request: ExchangeRequest, examples: int, metrics: Mapping[str, Any], seconds: float
    ) -> dict[str, Any]:
        return {
            "exchange": self._exchange,
            "server_round": request.server_round,
            "message_type": request.message_type,
            "survivors": [POOL],
            "examples": examples,
            "metrics": dict(metrics),
            "seconds": seconds,
        }


def run_centralized(
    app: FlowerApp, *, clients: int, run_config: Mapping[str, Scalar], emit: EventSink, out: Path | None
) -> None:
    """Train centrally in this process; saves the final model to `out`."""
    emit("started", {"app": app.name, "aggregation": "none", "rounds": None})
    backend = PooledBackend(app=app, clients=clients, run_config=run_config, emit=emit)
    # Nothing is aggregated, so a strategy that needs single updates sees the one that there is.
    outcome = run_server_app(app, backend=backend, run="centralized", run_config=dict(run_config), aggregation="plain")
    if out is not None and outcome.state is not None:
        outcome.state.save(out)
    emit("ended", {"status": "finished", "reason": ""})


def main() -> int:
    """The command line of the module."""
    parser = argparse.ArgumentParser(description=run_centralized.__doc__)
    parser.add_argument("app", type=Path)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--run-config", default="{}", help="JSON object laid over the app's run config")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    events = sys.stdout
    # What the user's code prints must not mix with the events.
    sys.stdout = sys.stderr
    started = time.monotonic()

    def emit(kind: str, data: Mapping[str, Any]) -> None:
        line = {"kind": kind, "data": data, "seconds": time.monotonic() - started}
        events.write(json.dumps(line) + "\n")
        events.flush()

    try:
        app = FlowerApp.load(arguments.app)
        run_config = override(app.run_config, json.loads(arguments.run_config), "the run config")
        run_centralized(app, clients=arguments.clients, run_config=run_config, emit=emit, out=arguments.out)
    except FedcoreError as error:
        emit("ended", {"status": "failed", "reason": str(error)})
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
