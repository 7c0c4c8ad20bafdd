"""One cohort of clients with all kinds of engines, through the real server: the sum does not show who is who."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.deployment import PATIENCE, Deployment

from fedcore.codec.scaling.error_bound import error_bound
from fedcore.comparison.local_federation import FEDCORE
from fedcore.flower.app import FlowerApp
from fedcore.run.encoding_plan import EncodingPlan
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.state import ModelState
from fedcore.wire.events import ExchangeDone, RunEvent

APP = FlowerApp.load(Path(__file__).parents[1] / "apps" / "tokens")
ENGINES = {
    "client-1": (),
    "client-2": ("--nproc-per-node", "2", "--engine", "ddp"),
    "client-3": ("--nproc-per-node", "2", "--engine", "fsdp"),
    "client-4": ("--nproc-per-node", "2", "--engine", "tp"),
    "client-5": ("--nproc-per-node", "2", "--engine", "pp", "--engine-set", "micro-batches=3"),
}
EXAMPLES = 20
STARTING = 300.0
"""Seconds in which the ranks of all these groups import torch and find each other, on a busy machine."""
ROUNDING = 2e-5
"""How far the weights of different engines may be apart after eight steps in float32."""


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """All clients of `ENGINES`, with the tokens app."""
    with Deployment.open(tmp_path_factory.mktemp("engines"), clients=len(ENGINES)) as deployment:
        deployment.app = APP.folder
        deployment.start_server()
        for name, options in ENGINES.items():
            deployment.start_client(name, *options)
        for name in ENGINES:
            deployment.wait_for_log(name, "connected", seconds=STARTING)
        yield deployment


def simulated(**changes: Any) -> tuple[ModelState, dict[str, float]]:
    """The same run in one process, where every client has the plainest engine: final weights and test metrics."""
    metrics: dict[str, float] = {}

    def note(event: RunEvent) -> None:
        if isinstance(event, ExchangeDone) and not event.trains:
            metrics.update({name: float(value) for name, value in event.metrics.items() if isinstance(value, float)})

    settings = JobSettings.from_mapping({**APP.settings.to_mapping(), "aggregation": "plain"})
    run_config = {**APP.run_config, **changes}
    outcome = Simulation(app=APP, clients=len(ENGINES), run_config=run_config, settings=settings, emit=note).run()
    assert outcome.state is not None
    return outcome.state, metrics


def exported(deployment: Deployment, name: str, out: Path) -> tuple[Mapping[str, np.ndarray], dict[str, Any]]:
    """What `fedcore client export --json` copies out and says."""
    command = [*FEDCORE, "client", "export", "--kit", str(deployment.kit(name)), "--out", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return ModelState.open(out), json.loads(done.stdout)


def test_layers_that_stay_on_their_client_can_be_exported(cohort: Deployment, tmp_path: Path) -> None:
    """One of the two is a single process, in the other two ranks hold half of each tensor."""
    done = cohort.submit(personal="blocks.3.*", num_server_rounds=2).finish(STARTING)
    assert done.status == 0, done.stderr
    own = {name: exported(cohort, name, tmp_path / f"{name}.safetensors") for name in ("client-1", "client-3")}
    shared = set(done.arrays())
    for state, about in own.values():
        assert set(state) - shared == {name for name in state if name.startswith("blocks.3.")} == set(about["personal"])
        assert about["server_round"] == 2
    first, second = (state for state, _ in own.values())
    assert all(not np.array_equal(first[name], second[name]) for name in about["personal"] if name.endswith("weight"))


def test_clients_of_all_kinds_in_one_cohort(cohort: Deployment) -> None:
    done = cohort.submit(settings={"min-clients": len(ENGINES)}).finish(STARTING)
    assert done.status == 0, done.stderr
    assert [event["survivors"] for event in done.of("exchange-done")] == [list(ENGINES)] * 2
    expected, metrics = simulated()
    start, _ = simulated(lr=1e-12)
    encoding = EncodingPlan(APP.settings).encoding("train", start.layout, len(ENGINES))
    bounds = error_bound(encoding, survivors=len(ENGINES), examples=EXAMPLES * len(ENGINES), base=start, largest=1.0)
    found = done.arrays()
    assert list(found) == list(expected)
    for name, bound in bounds.items():
        assert np.abs(found[name] - expected[name]).max() <= bound + ROUNDING, name
    # One client's training more or less would show.
    moved = max(float(np.abs(expected[name] - start[name]).max()) for name in expected)
    assert moved / len(ENGINES) > 20 * (max(bounds.values()) + ROUNDING)
    [evaluated] = [event["metrics"] for event in done.of("exchange-done") if event["message_type"] == "evaluate"]
    assert evaluated["eval_loss"] == pytest.approx(metrics["eval_loss"], abs=1e-4)
