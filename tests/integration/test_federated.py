"""One federation of real processes that serves two runs, and loses a client in the second."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.forked import ForkedGroup

from fedcore.comparison.execution import execute_run
from fedcore.comparison.federation import ReusableFederation
from fedcore.comparison.modes import parse_modes
from fedcore.comparison.run import Kill, PlannedRun
from fedcore.flower.app import FlowerApp
from fedcore.simulation.devices.network import Cost, Network
from fedcore.state import sha256_file

APP = Path(__file__).parents[1] / "apps" / "blobs"
SITES, ROUNDS = 4, 3
CLIENTS = [f"client-{i}" for i in range(1, SITES + 1)]
EXAMPLES = {"client-1": 40, "client-2": 50, "client-3": 60, "client-4": 70}
STEPS = {"client-1": 5, "client-2": 7, "client-3": 8, "client-4": 9}
"""Of a round."""


def made(folder: Path, *, seed: int, hold: str = "", **changes: Any) -> PlannedRun:
    app = FlowerApp.load(APP)
    (chosen,) = parse_modes("federated")
    run = PlannedRun(
        app=app,
        chosen=chosen,
        config={**app.run_config, "num-server-rounds": ROUNDS, "seed": seed, "hidden": 1000, "lr": 0.001, "hold": hold},
        settings=chosen.mode.settings(app.settings.to_mapping(), sites=SITES),
        sites=SITES,
        seed=seed,
        folder=folder,
        network=Network.parse("wan"),
        cost=Cost(step=1e-3, example=1e-5),
    )
    return replace(run, **changes)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Two seeds, one after another on the same processes; the second run loses a client.

    A client does not wait for its end. Without examples in round 2 it cannot have come to the end of it, however late
    the signal is.
    """
    out = tmp_path_factory.mktemp("federated")
    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch, ReusableFederation(out / "federations") as federation:
        patch.setattr("fedcore.comparison.federation.ChildProcesses", ForkedGroup)
        for name, run in {
            "first": made(out / "first", seed=1),
            "killed": made(out / "killed", seed=2, hold="2@2", kill=Kill(site=1, round=1)),
        }.items():
            kinds: list[str] = []
            result = execute_run(run, lambda event, kinds=kinds: kinds.append(event.kind), federation)
            found[name] = (result, run.folder, kinds)
            found.setdefault("warm", []).append(federation.is_running)
        found["federations"] = len(list((out / "federations").iterdir()))
        yield found


def test_a_run_is_reported_whole(runs: Any) -> None:
    result, folder, kinds = runs["first"]
    assert (result.status, result.reason, result.aggregation) == ("finished", "", "secure")
    assert [point.round for point in result.curve] == [0, 1, 2, 3]
    assert result.bytes_up.keys() == set(CLIENTS)
    assert result.steps == {name: ROUNDS * steps for name, steps in STEPS.items()}
    # Each training example once a round.
    assert [point.samples for point in result.curve] == [0, 220, 2 * 220, 3 * 220]
    assert result.samples == 3 * 220
    assert result.metrics["accuracy"] > 0.8 > result.curve[0].metrics["accuracy"]
    losses = [point.metrics["loss"] for point in result.curve]
    assert losses[-1] < losses[1] < losses[0]
    assert result.model_sha256 == sha256_file(folder / "model.safetensors")
    assert {"started", "exchange-done", "ended"} <= set(kinds)


def test_it_began_with_the_model_of_the_other_modes(runs: Any) -> None:
    """What the server handed out is what `first_of` makes, and depends on the seed."""
    for name in ("first", "killed"):
        result, folder, _ = runs[name]
        assert result.initial_sha256 == sha256_file(folder / "initial.safetensors")
    assert runs["first"][0].initial_sha256 != runs["killed"][0].initial_sha256


def test_the_last_model_is_evaluated_on_every_site(runs: Any) -> None:
    result, _, _ = runs["first"]
    assert [site.site for site in result.sites] == CLIENTS
    examples = sum(site.examples for site in result.sites)
    mean = sum(site.examples * site.metrics["accuracy"] for site in result.sites) / examples
    assert mean == pytest.approx(result.metrics["accuracy"], abs=1e-9)
    # The rounds before are known by what came out of a secure sum.
    assert all(set(point.metrics) >= {"accuracy", "loss"} for point in result.curve)


def test_bytes_are_those_of_training_with_the_models_download(runs: Any) -> None:
    result, folder, _ = runs["first"]
    model = (folder / "model.safetensors").stat().st_size
    first, second, third = (result.curve[i].bytes_down for i in (1, 2, 3))
    # From the second round on the clients had fetched the model to evaluate it; it counts once a round all the same.
    for one in (first, second - first, third - second):
        assert model < one < 2 * model
    assert result.curve[-1].bytes_up == pytest.approx(sum(result.bytes_up.values()) / SITES)


def test_the_simulated_clock_adds_the_wan(runs: Any) -> None:
    result, _, _ = runs["first"]
    start, first, second, third = (point.simulated_seconds for point in result.curve)
    assert start == 0.0
    # Six round trips of 100 ms, two of the key exchange, and a little for the bytes of this model.
    assert 0.8 < first < second < third < 3.0
    assert result.simulated_seconds == third


def test_a_federation_serves_the_next_run_and_ends_after_a_loss(runs: Any) -> None:
    assert runs["federations"] == 1
    assert runs["warm"] == [True, False]


def test_a_killed_client_is_reported_and_the_others_go_on(runs: Any) -> None:
    result, _, _ = runs["killed"]
    assert result.status == "finished"
    assert [point.round for point in result.curve] == [0, 1, 2, 3]
    (loss,) = result.losses
    assert (loss.worker, loss.round) == ("client-2", 1)
    assert "went on with 3 of 4 clients" in loss.consequence
    assert 0 < loss.seconds < 60
    # It took part in one round of three.
    assert result.steps == {**runs["first"][0].steps, "client-2": STEPS["client-2"]}
    assert result.samples == runs["first"][0].samples - 2 * EXAMPLES["client-2"]
