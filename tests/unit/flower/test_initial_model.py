"""A run that starts from a model of its operator's: the unmodified app gets it, or the refusal says by name why not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.raising import raises

from fedcore.errors import ConfigurationError
from fedcore.flower.app import FlowerApp
from fedcore.flower.serverside import ServerAppOutcome, run_server_app
from fedcore.run.exchange import ExchangeReply, ExchangeRequest
from fedcore.run.plain import PlainReply
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.state import ModelState

APPS = Path(__file__).parents[2] / "apps"


class Echo:
    """An ExchangeBackend that adds 1 to every tensor and keeps what it was sent."""

    def __init__(self) -> None:
        self.models: list[ModelState] = []

    def nodes(self) -> list[int]:
        return [1, 2, 3]

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        assert request.model is not None
        self.models.append(request.model)
        state = ModelState.from_arrays({name: array + array.dtype.type(1) for name, array in request.model.items()})
        trains = request.message_type == "train"
        metrics = {} if trains else {"loss": 0.5}
        return [ExchangeReply(node=0, state=state if trains else None, examples=3, metrics=metrics)]

    def report_figures(self, figures: object) -> None:
        del figures

    def ask(self, request: object) -> list[PlainReply]:
        raise AssertionError("secure mode only")


def run(backend: Echo, app: str, model: ModelState | None, **config: object) -> ServerAppOutcome:
    flower = FlowerApp.load(APPS / app)
    merged = {**flower.run_config, "num-server-rounds": 2, **config}
    return run_server_app(flower, backend=backend, run="r", run_config=merged, aggregation="secure", initial=model)


def test_the_strategy_starts_from_it() -> None:
    backend = Echo()
    initial = ModelState.from_arrays({"weight": np.full(10, 7, np.float32)})
    outcome = run(backend, "steady", initial, size=10, strategy="FedAvg")
    assert backend.models[0]["weight"].tolist() == [7.0] * 10
    assert outcome.state is not None
    assert outcome.state["weight"].tolist() == [9.0] * 10


@pytest.mark.parametrize("own", [True, False], ids=["with its own parameters", "without"])
def test_a_legacy_server_starts_from_it(own: bool) -> None:
    backend = Echo()
    arrays = {"0": np.full(4, 7, np.float32), "1": np.full((2, 2), 5, np.float32)}
    run(backend, "legacy", ModelState.from_arrays(arrays), initial=own, **{"min-nodes": 3})
    assert backend.models[0]["0"].tolist() == [7.0] * 4
    assert backend.models[0]["1"].tolist() == [[5.0] * 2] * 2


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"weights": np.zeros(10, np.float32)}, {"check": "tensors-differ", "match": "'weight'"}),
        (
            {"weight": np.zeros(10, np.float32), "bias": np.zeros(1, np.float32)},
            {"check": "tensors-differ", "match": "'bias'"},
        ),
        ({"weight": np.zeros((2, 5), np.float32)}, {"match": r"'weight'.*F32\[2, 5\].*F32\[10\]"}),
        ({"weight": np.zeros(10, np.float64)}, {"match": r"'weight'.*F64\[10\].*F32\[10\]"}),
    ],
)
def test_another_model_is_refused_before_the_first_exchange(
    tensors: dict[str, np.ndarray], says: dict[str, str]
) -> None:
    backend = Echo()
    with raises(ConfigurationError, **says):
        run(backend, "steady", ModelState.from_arrays(tensors), size=10, strategy="FedAvg")
    assert backend.models == []


def test_the_order_in_the_file_does_not_matter() -> None:
    """Other writers of safetensors sort their tensors."""
    backend = Echo()
    arrays = {"1": np.full((2, 2), 5, np.float32), "0": np.full(4, 7, np.float32)}
    run(backend, "legacy", ModelState.from_arrays(arrays), **{"min-nodes": 3})
    assert list(backend.models[0]) == ["0", "1"]


def test_a_loop_that_never_starts_a_strategy_is_refused() -> None:
    simulation = Simulation(
        app=FlowerApp.load(APPS / "records"),
        clients=3,
        run_config=FlowerApp.load(APPS / "records").run_config,
        settings=JobSettings(aggregation="plain"),
        initial=ModelState.from_arrays({"weight": np.zeros(3, np.float32)}),
    )
    with pytest.raises(ConfigurationError, match=r"Strategy\.start"):
        simulation.run()


def test_the_functions_of_flower_are_put_back() -> None:
    from flwr.server.server import Server
    from flwr.serverapp.strategy import Strategy

    before = Strategy.start, Server._get_initial_parameters  # noqa: SLF001 - Flower's
    run(Echo(), "steady", ModelState.from_arrays({"weight": np.zeros(10, np.float32)}), size=10, strategy="FedAvg")
    assert (Strategy.start, Server._get_initial_parameters) == before  # noqa: SLF001
