"""Federations over lines that are slow, and that pause."""

from __future__ import annotations

import contextlib
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from support.deployment import LIVENESS_SECONDS, PATIENCE, Deployment, wait_until
from support.slow_line import Line

from fedcore.federation import OperatorKit

NOOP = Path(__file__).parents[2] / "benchmarks" / "apps" / "noop"
PARAMETERS = 600_000
MODEL_BYTES = 4 * PARAMETERS
STEP = np.float32(0.002)
"""By which the model moves in a round: each client adds its own constant, 0.001, 0.002 and 0.003."""


@contextlib.contextmanager
def over_a_line(
    folder: Path, names: list[str], *, up: float, down: float, clients: int = 3, app: Path = NOOP
) -> Iterator[tuple[Deployment, Line]]:
    """A federation of which some clients are behind one line. up, down: its bytes a second."""
    with Deployment.open(folder, clients=clients, allow_plain=True) as made:
        made.app = app
        with Line.to(made.federation.port, up=up, down=down) as line:
            for name in names:
                kit = made.kit(name) / "client.toml"
                text = kit.read_text()
                assert f":{made.federation.port}" in text
                kit.write_text(text.replace(f":{made.federation.port}", f":{line.port}"))
            made.start()
            yield made, line
            assert made.stop("server") == 0


@contextlib.contextmanager
def operator(made: Deployment) -> Iterator[httpx.Client]:
    kit = OperatorKit.load(made.federation.operator)
    trusted = ssl.create_default_context(cafile=str(kit.ca_file))
    headers = {"Authorization": f"Bearer {kit.token}"}
    with httpx.Client(base_url=kit.servers[0], verify=trusted, headers=headers) as http:
        yield http


def member(made: Deployment, name: str) -> dict[str, Any]:
    """What the server says of a client."""
    with operator(made) as http:
        (client,) = [one for one in http.get("/v1/clients").json()["clients"] if one["name"] == name]
    return dict(client)


def standing(made: Deployment, name: str) -> dict[str, Any]:
    """What the server says of a client in the newest run."""
    with operator(made) as http:
        run = http.get("/v1/runs").json()["runs"][0]["run"]
        (client,) = [one for one in http.get(f"/v1/runs/{run}/clients").json()["clients"] if one["name"] == name]
    return dict(client)


def last_seen(made: Deployment, name: str) -> float:
    return float(member(made, name)["last_seen_seconds"])


def test_a_model_that_takes_longer_than_a_step_arrives(tmp_path: Path) -> None:
    """Plain and secure alike; by the time of a step a third of it is here."""
    step = 5.0
    with over_a_line(tmp_path, ["client-1"], up=10 * MODEL_BYTES, down=MODEL_BYTES / (3 * step)) as (made, _):
        for aggregation in ("secure", "plain"):
            settings = {"min-clients": 3, "step-seconds": step, "max-attempts": 1, "aggregation": aggregation}
            ended = made.submit(settings=settings, num_server_rounds=1, min_nodes=3, parameters=PARAMETERS).finish()
            assert ended.status == 0, ended.stderr
            assert ended.of("dropped") == []
            (done,) = [sum(one["stage_seconds"].values()) for one in ended.of("exchange-done")]
            assert done > 2 * step


def test_a_line_that_pauses_in_the_midst_of_an_upload_does_not_lose_its_site(tmp_path: Path) -> None:
    with over_a_line(tmp_path, ["client-1"], up=MODEL_BYTES / 8, down=10 * MODEL_BYTES) as (made, line):
        before = line.up.passed
        run = made.submit(settings={"min-clients": 3}, num_server_rounds=1, min_nodes=3, parameters=PARAMETERS)
        wait_until("an upload to be under way", lambda: line.up.passed - before > MODEL_BYTES / 4)
        line.pause()
        assert standing(made, "client-1")["state"] == "uploading", "its only part has not come to the end"
        wait_until("the silence", lambda: last_seen(made, "client-1") > 1.5 * LIVENESS_SECONDS, PATIENCE)
        line.go_on()
        ended = run.finish()
    assert ended.status == 0, ended.stderr
    assert ended.of("dropped") == []
    assert ended.trained() == [["client-1", "client-2", "client-3"]]


def test_an_upload_that_takes_longer_than_training_and_a_step_arrives(tmp_path: Path) -> None:
    """The first one by the speed that it shows, the second one by that of the first."""
    train, step = 1.0, 9.0
    rate = 2 * PARAMETERS / (2 * (train + step))
    settings = {"min-clients": 3, "step-seconds": step, "train-seconds": train, "liveness-seconds": PATIENCE}
    with over_a_line(tmp_path, ["client-1"], up=rate, down=10 * MODEL_BYTES) as (made, _):
        ended = made.submit(settings=settings, num_server_rounds=2, min_nodes=3, parameters=PARAMETERS).finish()
        slow = member(made, "client-1")
    assert ended.status == 0, ended.stderr
    assert ended.of("dropped") == []
    assert all(done["stage_seconds"]["input"] > train + step for done in ended.of("exchange-done"))
    assert 0.5 * rate < slow["up_speed"] < 2 * rate
    (warning,) = [one["line"] for one in ended.of("warning")]
    assert "client-1" in warning


def test_a_line_that_cannot_carry_an_upload_in_time_costs_one_round(tmp_path: Path) -> None:
    """One round waits for a client whose update takes ten times as long as it may; the others do not ask it."""
    stage, rate = 20.0, 8 * PARAMETERS / 200.0
    settings = {
        "min-clients": 3,
        "step-seconds": stage - 2.0,
        "train-seconds": 1.0,
        "transfer-seconds": 1.0,
        "liveness-seconds": PATIENCE,
    }
    with over_a_line(tmp_path, ["client-1"], up=rate, down=10 * MODEL_BYTES, clients=4) as (made, _):
        ended = made.submit(settings=settings, num_server_rounds=3, min_nodes=4, parameters=PARAMETERS).finish()
        slow = member(made, "client-1")
    assert ended.status == 0, ended.stderr
    assert [drop["client"] for drop in ended.of("dropped")] == ["client-1"]
    assert [len(exchange["cohort"]) for exchange in ended.of("exchange")] == [4, 3, 3]
    assert slow["rests"]
    assert 0.2 * rate < slow["up_speed"] < 2 * rate


@pytest.mark.parametrize("upload", [1.0, 0.25])
def test_a_mean_goes_down_a_slow_line_in_as_few_bytes_as_its_sum(tmp_path: Path, upload: float) -> None:
    """From the third round on: the fields of the first sum are as wide as the model."""
    fewer = {"field-bits": "auto", "upload-fraction": upload} if upload < 1 else {}
    settings = {"min-clients": 3, **fewer}
    with over_a_line(tmp_path, ["client-1"], up=MODEL_BYTES, down=MODEL_BYTES) as (made, _):
        ended = made.submit(settings=settings, num_server_rounds=4, min_nodes=3, parameters=PARAMETERS).finish()
    assert ended.status == 0, ended.stderr
    down = [one["bytes_down"]["client-1"] / PARAMETERS for one in ended.of("exchange-done")]
    up = [one["bytes_up"]["client-1"] / PARAMETERS for one in ended.of("exchange-done")]
    assert all(received < sent + 0.1 < 2.2 for received, sent in zip(down[2:], up[2:], strict=True)), (down, up)
    for name, values in ended.arrays().items():
        moved = values - start()[name]
        if upload == 1:
            np.testing.assert_allclose(moved, 4 * STEP, atol=1e-5)
        np.testing.assert_allclose(moved.mean(), 4 * STEP, rtol=0.1)


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [("FedAdam", {}), ("FedAvg", {"clip-norm": 0.01, "dp-noise-multiplier": 1.0})],
    ids=["a strategy that changes the mean", "differential privacy"],
)
def test_other_models_go_down_a_slow_line_as_exact_differences(
    tmp_path: Path, strategy: str, settings: dict[str, Any]
) -> None:
    """From the second round on. A client that had not made the announced model of it would fetch the whole as well."""
    shutil.copytree(NOOP, tmp_path / "app")
    path = tmp_path / "app" / "noop_app" / "server_app.py"
    path.write_text(path.read_text().replace("strategy import FedAvg", f"strategy import {strategy} as FedAvg"))
    settings = {"min-clients": 3, **settings}
    with over_a_line(tmp_path, ["client-1"], up=MODEL_BYTES, down=MODEL_BYTES, app=tmp_path / "app") as (made, _):
        ended = made.submit(settings=settings, num_server_rounds=4, min_nodes=3, parameters=PARAMETERS).finish()
    assert ended.status == 0, ended.stderr
    down = [one["bytes_down"]["client-1"] / MODEL_BYTES for one in ended.of("exchange-done")]
    assert len(down) == 4
    assert all(0.2 < received < 0.76 for received in down[1:]), down


def start() -> dict[str, NDArray[np.float32]]:
    """The model that the app begins with."""
    parts = np.array_split(np.random.default_rng(0).standard_normal(PARAMETERS, dtype=np.float32), 10)
    return {f"block{number}": part for number, part in enumerate(parts)}
