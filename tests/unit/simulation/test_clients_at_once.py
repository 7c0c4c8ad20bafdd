"""A simulation whose clients train at once reports what one reports whose clients train one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from support.raising import raises
from torch import Tensor, nn

from fedcore.data import Split
from fedcore.errors import ConfigurationError, DataError
from fedcore.flower.apps import supervised_batches as supervised_together
from fedcore.flower.apps.engine_app import LocalApp, LocalJob, local_app
from fedcore.flower.apps.personalization import Personal
from fedcore.flower.apps.supervised import supervised_app
from fedcore.flower.memory_app import load_app
from fedcore.flower.strategies.registry import STRATEGIES
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.state import ModelState
from fedcore.training import OptimizerConfig, evaluate, seeded, train
from fedcore.training.batched.rules import StackedLinear
from fedcore.wire.events import ExchangeDone, RunEvent, Warned

CLIENTS = 5
KEYS: Mapping[str, Mapping[str, Any]] = {
    "fedprox": {"proximal-mu": 0.3},
    "ditto": {"ditto-lambda": 0.1},
    "fedper": {"personal-layers": "2.*"},
    "scaffold": {"server-lr": 1.0},
}


def split(client: int) -> Split:
    """Training examples of a client from 1 on: 3 to 9 of them."""
    rng = np.random.default_rng(client)
    x = rng.normal(size=(2 + client, 4)).astype(np.float32)
    return Split(x=x, y=(x[:, 0] > 0).astype(np.int64))


SPLITS = {client: split(client) for client in range(1, CLIENTS + 1)}


def network(*layers: nn.Module) -> Callable[[Any], nn.Module]:
    def build(config: Any) -> nn.Module:
        with seeded(0):
            return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), *layers, nn.Linear(5, 2))

    return build


def own_data(job: LocalJob) -> tuple[Split, Split]:
    return (SPLITS[job.client],) * 2


def app_of(**options: Any) -> LocalApp:
    given = {
        "model": network(),
        "optimizer": lambda config: OptimizerConfig(lr=0.2),
        "data": own_data,
        **options,
    }
    return supervised_app(**given)


@dataclass
class Ran:
    """state: the last model. groups: sizes of the groups that trained at once."""

    state: ModelState | None = None
    events: list[RunEvent] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)

    @property
    def exchanges(self) -> list[ExchangeDone]:
        return [event for event in self.events if isinstance(event, ExchangeDone)]

    @property
    def reasons(self) -> list[str]:
        said = [event.line for event in self.events if isinstance(event, Warned)]
        return [line.partition("one by one: ")[2] for line in said if "one by one" in line]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    ran = Ran()
    real = supervised_together.train_together

    def watched(engine: Any, plans: Any, **options: Any) -> Any:
        ran.groups.append(len(plans))
        return real(engine, plans, **options)

    monkeypatch.setattr(supervised_together, "train_together", watched)

    def start(app: LocalApp, at_once: int, *, aggregation: str = "plain", rounds: int = 2, **config: Any) -> Ran:
        nonlocal ran
        ran = Ran()
        given = {"num-server-rounds": rounds, "batch-size": 3, "local-epochs": 2, **config}
        with load_app(app, given) as found:
            simulation = Simulation(
                app=found.app,
                clients=CLIENTS,
                run_config=found.app.run_config,
                settings=JobSettings(aggregation=aggregation),  # type: ignore[arg-type]
                clients_at_once=at_once,
                emit=ran.events.append,
            )
            ran.state = simulation.run().state
        return ran

    return start


def assert_same(a: Ran, b: Ran, *, tolerance: float) -> None:
    assert a.state is not None
    assert b.state is not None
    for name in a.state:
        np.testing.assert_allclose(a.state[name], b.state[name], rtol=0, atol=tolerance)
    assert len(a.exchanges) == len(b.exchanges)
    for one, other in zip(a.exchanges, b.exchanges, strict=True):
        assert (one.message_type, one.survivors, one.examples) == (other.message_type, other.survivors, other.examples)
        assert dict(one.metrics) == pytest.approx(dict(other.metrics), abs=10 * tolerance)


def assert_same_models(plain: Ran, secure: Ran) -> None:
    """Up to what is rounded in a sum."""
    assert plain.state is not None
    assert secure.state is not None
    for name in plain.state:
        np.testing.assert_allclose(plain.state[name], secure.state[name], rtol=0, atol=1e-3)


# FedBuff is for runs of another kind.
@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES) - {"fedbuff"}))
def test_every_strategy(run: Callable[..., Ran], strategy: str) -> None:
    config = {"strategy": strategy, **KEYS.get(strategy, {})}
    layers = (nn.BatchNorm1d(5),) if strategy == "fedbn" else ()
    alone = run(app_of(model=network(*layers)), 1, **config)
    assert alone.groups == []
    assert_same(alone, run(app_of(model=network(*layers)), 3, **config), tolerance=1e-6)


@pytest.mark.parametrize("aggregation", ["plain", "secure"])
@pytest.mark.parametrize(("at_once", "groups"), [(0, [5, 5]), (3, [3, 2, 3, 2]), (1, [])])
def test_in_groups(run: Callable[..., Ran], aggregation: str, at_once: int, groups: list[int]) -> None:
    alone = run(app_of(), 1, aggregation=aggregation)
    found = run(app_of(), at_once, aggregation=aggregation)
    assert found.groups == groups
    assert found.reasons == []
    # Secure sums are of values that are rounded at random.
    assert_same(alone, found, tolerance=1e-6 if aggregation == "plain" else 2e-4)


def test_examples_of_several_shapes_train_apart(run: Callable[..., Ran]) -> None:
    def data(job: LocalJob) -> tuple[Split, Split]:
        own = SPLITS[job.client]
        found = Split(x=own.x.astype(np.float64).round().astype(np.uint8), y=own.y) if job.client < 3 else own
        return found, found

    alone, found = run(app_of(data=data), 1, rounds=1), run(app_of(data=data), 0, rounds=1)
    assert found.groups == [2, 3]
    assert_same(alone, found, tolerance=1e-6)


def own_app(**options: Any) -> LocalApp:
    def fit(engine: Any, job: LocalJob) -> dict[str, Any]:
        summary = train(engine, own_data(job)[0], batch_size=3, epochs=1, seed=1, rule=job.rule)
        return {"num-examples": summary.examples}

    def check(engine: Any, job: LocalJob) -> dict[str, Any]:
        found = evaluate(engine, own_data(job)[1])
        return {"num-examples": found.examples, "eval_loss": found.loss}

    return local_app(
        model=network(), optimizer=lambda config: OptimizerConfig(lr=0.2), train=fit, evaluate=check, **options
    )


class Noisy(nn.Module):
    """Draws as dropout does, under a name that nobody knows."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5, self.training)


@pytest.mark.parametrize(
    ("app", "said"),
    [
        (lambda: app_of(model=network(nn.Dropout(0.5))), "Dropout (2), which draws numbers for each client"),
        (
            lambda: app_of(model=network(nn.BatchNorm1d(5, track_running_stats=False))),
            "BatchNorm1d (2), whose examples depend on each other",
        ),
        (lambda: app_of(model=network(Noisy())), "vmap cannot do it: vmap: called random operation"),
        (lambda: app_of(personal=lambda config: Personal(patterns=("0.*",))), "stays on each client"),
        (lambda: app_of(optimizer_state="keep"), 'optimizer_state is "keep"'),
        (own_app, "code of its own"),
    ],
    ids=["dropout", "batch-norm", "unknown", "personal", "optimizer", "own-loop"],
)
def test_what_cannot_train_at_once_trains_one_by_one(
    run: Callable[..., Ran], app: Callable[[], LocalApp], said: str
) -> None:
    alone, asked, automatic = (run(app(), at_once, rounds=1) for at_once in (1, 3, 0))
    assert (alone.groups, asked.groups, automatic.groups) == ([], [], [])
    assert len(asked.reasons) == 1, "it is said once"
    assert said in asked.reasons[0]
    assert_same(alone, asked, tolerance=0)
    assert_same(alone, automatic, tolerance=0)


def test_a_difference_is_found_and_said(run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    alone = run(app_of(), 1, rounds=1)
    right = StackedLinear.forward

    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return right(ctx, x, weight, bias) * 1.001

    monkeypatch.setattr(StackedLinear, "forward", staticmethod(forward))
    found = run(app_of(), 0, rounds=1)
    assert found.groups == []
    assert len(found.reasons) == 1
    assert "off by" in found.reasons[0]
    assert_same(alone, found, tolerance=0)


def test_the_error_of_one_client_is_its_own(run: Callable[..., Ran]) -> None:
    def data(job: LocalJob) -> tuple[Split, Split]:
        if job.client == 4:
            raise OSError("disk")
        return own_data(job)

    found = run(app_of(data=data), 0, rounds=1)
    assert found.groups == [4]
    survivors = found.exchanges[0].survivors
    assert survivors == [f"client-{i}" for i in range(1, CLIENTS + 1) if i != 4]
    secure = run(app_of(data=data), 0, aggregation="secure", rounds=1)
    trained = secure.exchanges[0]
    assert (len(trained.survivors), trained.failures) == (CLIENTS, 1)
    assert trained.examples == sum(len(SPLITS[i].y) for i in SPLITS if i != 4)
    assert_same_models(found, secure)


def test_missing_values_are_named_as_ever(run: Callable[..., Ran]) -> None:
    broken = split(3)
    broken.x[1, 2] = np.nan

    def data(job: LocalJob) -> tuple[Split, Split]:
        return (broken if job.client == 3 else SPLITS[job.client],) * 2

    done = run(app_of(data=data), 0, aggregation="secure", rounds=1)
    assert [event.failures for event in done.exchanges] == [1, 1]
    assert any("client-3" in event.line for event in done.events if isinstance(event, Warned))
    broken.x[:] = np.nan
    with raises(DataError, check="missing-values"):
        run(app_of(data=lambda job: (broken,) * 2), 0, aggregation="secure")


def test_a_negative_number_is_refused(run: Callable[..., Ran]) -> None:
    with pytest.raises(ConfigurationError, match="-1"):
        run(app_of(), -1)
