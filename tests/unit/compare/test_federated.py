"""One federation of real processes that serves several runs, and loses a client in the last."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedcore.compare.federated import run_federated
from fedcore.compare.federation import Federation
from fedcore.compare.modes import parse_modes
from fedcore.compare.network import Cost, Network
from fedcore.compare.results import RunResult
from fedcore.compare.run import Kill, ModeRun
from fedcore.flower.app import FlowerApp
from fedcore.state import sha256_file

DIGITS = Path(__file__).parents[3] / "examples" / "digits"
SITES, ROUNDS = 4, 3
CLIENTS = [f"client-{i}" for i in range(1, SITES + 1)]


def made(folder: Path, *, seed: int, **changes: Any) -> ModeRun:
    app = FlowerApp.load(DIGITS)
    run = ModeRun(
        app=app,
        mode=parse_modes("federated")[0],
        config={**app.run_config, "num-server-rounds": ROUNDS, "seed": seed, "local-epochs": 1, "partition": "iid"},
        settings={},
        sites=SITES,
        seed=seed,
        folder=folder,
        network=Network.parse("wan"),
        cost=Cost(step=1e-3, example=1e-5),
    )
    return replace(run, **changes)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[RunResult, Path, list[str]]]]:
    """Two seeds and a kill, one after another on the same processes."""
    out = tmp_path_factory.mktemp("federated")
    found: dict[str, tuple[RunResult, Path, list[str]]] = {}
    with Federation(out / "federations") as federation:
        for name, run in {
            "first": made(out / "first", seed=1),
            "second": made(out / "second", seed=2),
            "killed": made(out / "killed", seed=1, kill=Kill(site=1, round=1)),
        }.items():
            kinds: list[str] = []
            result = run_federated(run, lambda kind, data, kinds=kinds: kinds.append(kind), federation)
            found[name] = (result, run.folder, kinds)
        found["federations"] = len(list((out / "federations").iterdir()))  # type: ignore[assignment]
        yield found


def test_a_run_is_reported_whole(runs: Any) -> None:
    result, folder, kinds = runs["first"]
    assert (result.status, result.reason, result.aggregation) == ("finished", "", "secure")
    assert [point.round for point in result.curve] == [1, 2, 3]
    assert result.steps.keys() == result.bytes_up.keys() == set(CLIENTS)
    # 1437 examples train, each once a round.
    assert [point.samples for point in result.curve] == [1437, 2 * 1437, 3 * 1437]
    assert result.samples == 3 * 1437
    assert result.curve[-1].accuracy > 0.5
    assert result.curve[-1].loss < result.curve[0].loss
    assert result.model_sha256 == sha256_file(folder / "model.safetensors")
    assert {"started", "exchange-done", "ended"} <= set(kinds)


def test_it_began_with_the_model_of_the_other_modes(runs: Any) -> None:
    """What the server handed out is what `initial_state` makes, and depends on the seed."""
    for name in ("first", "second"):
        result, folder, _ = runs[name]
        assert result.initial_sha256 == sha256_file(folder / "initial.safetensors")
    assert runs["first"][0].initial_sha256 != runs["second"][0].initial_sha256


def test_bytes_are_those_of_training_with_the_models_download(runs: Any) -> None:
    result, folder, _ = runs["first"]
    model = (folder / "model.safetensors").stat().st_size
    first, second = (result.curve[i].bytes_down for i in (0, 1))
    # From the second round on the clients had fetched the model to evaluate it.
    assert model < second - first < 2 * model
    assert abs(second - 2 * first) < 0.2 * first
    assert result.curve[-1].bytes_up == pytest.approx(sum(result.bytes_up.values()) / SITES)


def test_the_simulated_clock_adds_the_wan(runs: Any) -> None:
    result, _, _ = runs["first"]
    first, second, third = (point.simulated_seconds for point in result.curve)
    # Seven round trips of 100 ms are more than the bytes and the steps of this model take.
    assert 0.7 < first < second < third < 3.0
    assert result.simulated_seconds == third


def test_a_federation_stays_for_the_next_run(runs: Any) -> None:
    assert runs["second"][0].status == "finished"
    assert runs["federations"] == 1


def test_a_killed_client_is_reported_and_the_others_go_on(runs: Any) -> None:
    result, _, kinds = runs["killed"]
    assert result.status == "finished"
    assert [point.round for point in result.curve] == [1, 2, 3]
    (loss,) = result.losses
    assert (loss.worker, loss.round) == ("client-2", 1)
    assert "went on with 3 of 4 clients" in loss.consequence
    assert 0 < loss.seconds < 30
    # It took part in one round of three.
    assert result.steps["client-2"] * 3 == result.steps["client-1"]
    assert result.samples < runs["first"][0].samples


def test_a_federation_that_lost_a_client_is_ended(runs: Any, tmp_path: Path) -> None:
    with Federation(tmp_path) as federation:
        bad = made(tmp_path / "run", seed=1)
        result = run_federated(replace(bad, settings={"quorum": 9}), lambda kind, data: None, federation)
        assert result.status == "failed"
        assert "quorum" in result.reason
