"""A tracked run, read back by the trackers' own readers; and nobody else hears of it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.deployment import ENVIRONMENT, PATIENCE
from support.tiny import TINY
from support.wandb_file import history, records

WATCHED = """
import sys

noted = sys.argv.pop(1)


def watch(name, arguments):
    address = arguments[1] if name == "socket.connect" else None
    if isinstance(address, tuple) and not address[0].startswith("127.") and address[0] != "::1":
        with open(noted, "a") as file:
            print(address, file=file)


sys.addaudithook(watch)
from fedcore.cli.main import main

main()
"""
"""A command of ours, with a file first into which connections to elsewhere are written."""


@contextlib.contextmanager
def nobody() -> Iterator[socket.socket]:
    """A proxy that nobody should ask: whatever honours the environment, in Python or not, would come here."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulation that all three trackers were told of, each in its folder here."""
    folder = tmp_path_factory.mktemp("tracked")
    noted = folder / "connections"
    words = [
        "simulate",
        str(TINY),
        "--clients",
        "3",
        "--engine",
        "inline",
        "--run-config",
        "num-server-rounds=2",
        "--out",
        "model.safetensors",
    ]
    for kind in ("tensorboard", "mlflow", "wandb"):
        words += ["--track", f"{kind}:{folder / kind}"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "MLFLOW"))}
    with nobody() as proxy:
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        asked = dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"), address)
        done = subprocess.run(
            [sys.executable, "-c", WATCHED, str(noted), *words],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            cwd=folder,
            env={**kept, **ENVIRONMENT, **asked},
        )
        with pytest.raises(BlockingIOError):
            proxy.accept()
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    assert not noted.exists(), noted.read_text()
    return folder


def test_tensorboard(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (run,) = (folder / "tensorboard").iterdir()
    found = EventAccumulator(str(run)).Reload()
    assert [scalar.step for scalar in found.Scalars("evaluate/eval_loss")] == [1, 2]
    assert {"train/seconds", "train/clients", "traffic/bytes_up", "train/dropped"} <= set(found.Tags()["scalars"])
    assert {"parameters/text_summary", "tags/text_summary", "model/text_summary"} <= set(found.Tags()["tensors"])


# MLflow's own use of SQLAlchemy.
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")
def test_mlflow(folder: Path) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert (run.data.params["config/lr"], run.data.params["settings/field-bits"]) == ("0.5", "32")
    assert len(run.data.tags["app_sha256"]) == 64
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "evaluate/eval_loss")] == [1, 2]
    (model,) = client.list_artifacts(run.info.run_id, "model")
    assert model.path == "model/model.safetensors"


def test_wandb(folder: Path) -> None:
    (path,) = (folder / "wandb" / "wandb").glob("offline-run-*/run-*.wandb")
    found = history(path)
    assert [row["round"] for row in found if "evaluate/eval_loss" in row] == [1, 2]
    everything = list(records(path))
    (run,) = [record.run for record in everything if record.HasField("run")]
    config = {item.key: item.value_json for item in run.config.update}
    assert config["config/lr"] == "0.5"
    assert any(
        "model" in record.request.log_artifact.artifact.type or record.HasField("artifact") for record in everything
    )
    assert not list(path.parent.rglob("requirements.txt")), "of the machine nothing is recorded"
