"""A whole secure federation of two clients on one GPU, and a simulation: real processes, a real example.

Without a GPU this is what tests/integration/test_engines.py and tests/unit/simulation/test_clients_at_once.py show.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.deployment import Deployment

DIGITS = Path(__file__).parents[2] / "examples" / "digits"
CLIENTS = ["client-1", "client-2"]
OFFLOADED = ["--engine", "fsdp", "--engine-set", "offload=true"]
SHARE = ["--engine-set", "memory-share=0.25"]


@pytest.fixture(autouse=True)
def there() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: torch.cuda.is_available() is false")


def test_two_clients_train_in_secret_on_one_device(tmp_path: Path) -> None:
    """One keeps its model in the memory of the host; both have a share of the device's."""
    with Deployment.open(tmp_path, clients=len(CLIENTS), forked=False) as federation:
        federation.app = DIGITS
        federation.start_server()
        federation.start_client("client-1", *OFFLOADED, *SHARE)
        federation.start_client("client-2", *SHARE)
        for name in CLIENTS:
            federation.wait_for_log(name, "connected")
        done = federation.submit(settings={"min-clients": len(CLIENTS)}, num_server_rounds=3).finish()
    assert done.status == 0, done.stderr
    assert done.summary["aggregation"] == "secure"
    assert done.trained() == [CLIENTS] * 3
    accuracies = [event["metrics"]["eval_acc"] for event in done.of("exchange-done") if "eval_acc" in event["metrics"]]
    assert accuracies[-1] > 0.8


def simulated(*options: str) -> dict[str, float]:
    command = [
        sys.executable,
        "-m",
        "fedcore",
        "simulate",
        str(DIGITS),
        "--clients",
        "4",
        "--engine",
        "inline",
        "--json",
    ]
    given = ["--run-config", "num-server-rounds=2", "--aggregation", "secure", *options]
    ended = subprocess.run([*command, *given], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    metrics: dict[str, float] = json.loads(ended.stdout)["metrics"]
    return metrics


def test_clients_of_a_simulation_train_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two in one batched step on the device; the same as one by one on a processor, but for rounding."""
    found = simulated("--clients-at-once", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    expected = simulated("--clients-at-once", "1")
    assert found["eval_acc"] == pytest.approx(expected["eval_acc"], abs=0.01)
    assert found["eval_loss"] == pytest.approx(expected["eval_loss"], rel=0.01)
