"""Stock kits, an honest server, and an operator who chooses the model that a run begins with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.deployment import Deployment, Ended

from client_app.exchange.first_model import FIRST_MODELS_FILE
from fedcore.federation import Policy
from fedcore.state import ModelState

CLIENTS = 4
UNSEEDED = Path(__file__).parents[1] / "apps" / "unseeded"


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One server and four clients with the tiny app, with the stock policy; a test may take its time, too."""
    default = Policy.default(CLIENTS)
    policy = replace(default, allow_config={**default.allow_config, "fedcore.train-seconds": True})
    with Deployment.open(tmp_path_factory.mktemp("stock"), policy=policy) as deployment:
        deployment.start()
        yield deployment


@pytest.fixture(scope="module")
def first(stock: Deployment) -> Ended:
    """A run from the app's own model."""
    done = stock.submit(num_server_rounds=2).finish()
    assert done.status == 0, done.stderr
    return done


def crafted(like: Ended, path: Path, factor: float) -> Path:
    """A model that nobody trained."""
    tensors = {name: (np.asarray(value) * factor).astype(value.dtype) for name, value in like.arrays().items()}
    ModelState.from_arrays(tensors).save(path)
    return path


def test_what_the_client_derives_is_what_the_server_announces(stock: Deployment, first: Ended) -> None:
    announced = {data["model"] for data in first.of("exchange") if data["server_round"] == 1}
    for name in stock.federation.client_names():
        kept = json.loads((stock.kit(name) / "state" / FIRST_MODELS_FILE).read_text())["models"]
        assert set(kept.values()) <= announced
        assert len(kept) == 1, "derived once for a run"


def test_a_crafted_model_is_refused_until_the_owners_name_it(stock: Deployment, first: Ended, tmp_path: Path) -> None:
    model = crafted(first, tmp_path / "crafted.safetensors", 3.0)
    done = stock.submit(initial=model).finish()
    assert (done.status, done.trained()) == (5, [])
    named = re.search(r"every client refused: first-model ([0-9a-f]{64})", done.stderr)
    assert named is not None, done.stderr
    assert "first-models" in done.stderr, "the operator reads what the owners can do"
    for name in stock.federation.client_names():
        stock.stop(name)
        path = stock.kit(name) / "policy.toml"
        path.write_text(path.read_text().replace('first-models = ["app"]', f'first-models = ["app", "{named[1]}"]'))
    stock.start_clients()
    done = stock.submit(initial=model).finish()
    assert done.status == 0, done.stderr


def test_the_next_run_begins_where_the_last_one_ended(stock: Deployment, first: Ended) -> None:
    """Its last model was tested federated, so the transcript has it."""
    done = stock.submit(initial=first.model).finish()
    assert done.status == 0, done.stderr
    assert len(done.trained()) == 1


@pytest.mark.parametrize("unrepeatable", [False, True])
def test_an_app_that_seeds_nothing(tmp_path: Path, unrepeatable: bool) -> None:
    """Processes as people start them: the server's and the clients' generators are in the same state."""
    default = Policy.default(3)
    allowed = {**default.allow_config, "fedcore.train-seconds": True, "unrepeatable": True}
    with Deployment.open(
        tmp_path, clients=3, forked=False, policy=replace(default, allow_config=allowed)
    ) as deployment:
        deployment.app = UNSEEDED
        deployment.start()
        done = deployment.submit(unrepeatable=unrepeatable).finish()
        if unrepeatable:
            assert (done.status, done.trained()) == (5, [])
            assert "every client refused: first-model" in done.stderr
        else:
            assert done.status == 0, done.stderr + deployment.log("client-1")
