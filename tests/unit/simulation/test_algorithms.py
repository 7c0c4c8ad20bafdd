"""Every algorithm against a few lines of NumPy: four clients with least squares of their own, in plain and secure sums.

The reference knows the paper and nothing of the code: full-batch gradient steps in float64, the means written out. In
round 2 one client is away; in round 3 another one drops out after it has trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord
from support.raising import raises
from support.simulated import Absences
from torch import nn

from fedcore.data import Split
from fedcore.errors import AppError, BudgetSpent, ConfigurationError
from fedcore.flower.apps.engine_app import LocalApp, LocalJob, local_app
from fedcore.flower.grid.secure_grid import SecureGrid
from fedcore.flower.memory_app import load_app
from fedcore.flower.records import state_from_arrays
from fedcore.flower.strategies.registry import make_strategy
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.state import ModelState
from fedcore.training import OptimizerConfig, evaluate, train

CLIENTS = (1, 2, 3, 4)
STEPS = {1: 1, 2: 5, 3: 2, 4: 9}
RATE = 0.05
ROUNDS = 4
PRESENT = {1: (1, 2, 3, 4), 2: (1, 2, 4), 3: (1, 3, 4), 4: (1, 2, 3, 4)}
"""Whose updates are in the sum. In round 2 client 3 is not connected, in round 3 client 2 drops out with its update."""
_RNG = np.random.default_rng(5)
X = {i: _RNG.normal(size=(6 + 3 * i, 3)) * (1 + 0.4 * i) for i in CLIENTS}
Y = {i: X[i] @ _RNG.normal(size=3) + i for i in CLIENTS}
EXAMPLES = {i: len(X[i]) for i in CLIENTS}


def gradient(client: int, w: np.ndarray) -> np.ndarray:
    x, y = X[client], Y[client]
    return 2 / len(x) * x.T @ (x @ w - y)


def steps(client: int, w: np.ndarray, change: Callable[[np.ndarray], np.ndarray] = np.zeros_like) -> np.ndarray:
    """The model after the client's local steps; change: added to each gradient, from the model."""
    for _ in range(STEPS[client]):
        w = w - RATE * (gradient(client, w) + change(w))
    return w


# --- the papers, one generator of global models each ----------------------------------------------------------------


def fednova() -> Iterator[np.ndarray]:
    x = np.zeros(3)
    for present in PRESENT.values():
        n = sum(EXAMPLES[i] for i in present)
        p = {i: EXAMPLES[i] / n for i in present}
        d = {i: (x - steps(i, x)) / (RATE * STEPS[i]) for i in present}
        tau_eff = sum(p[i] * STEPS[i] for i in present)
        x = x - tau_eff * RATE * sum(p[i] * d[i] for i in present)
        yield x


def scaffold() -> Iterator[np.ndarray]:
    x, c = np.zeros(3), np.zeros(3)
    ci = {i: np.zeros(3) for i in CLIENTS}
    for present in PRESENT.values():
        moves, changes = [], []
        for i in present:
            y = steps(i, x, lambda w, own=ci[i], c=c: c - own)
            after = ci[i] - c + (x - y) / (STEPS[i] * RATE)
            moves.append(y - x)
            changes.append(after - ci[i])
            ci[i] = after
        x = x + 0.5 * np.mean(moves, axis=0)
        c = c + len(present) / len(CLIENTS) * np.mean(changes, axis=0)
        yield x


def feddyn(alpha: float = 0.3) -> Iterator[np.ndarray]:
    x, h = np.zeros(3), np.zeros(3)
    g = {i: np.zeros(3) for i in CLIENTS}
    for present in PRESENT.values():
        models = {i: steps(i, x, lambda w, own=g[i], x=x: -own + alpha * (w - x)) for i in present}
        for i, model in models.items():
            g[i] = g[i] - alpha * (model - x)
        h = h - alpha / len(CLIENTS) * sum(model - x for model in models.values())
        x = np.mean(list(models.values()), axis=0) - h / alpha
        yield x


def diloco() -> Iterator[np.ndarray]:
    """The outer optimizer is PyTorch's own Nesterov SGD, as in `fedcore.training.averaging`."""
    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    outer = torch.optim.SGD([x], lr=0.7, momentum=0.9, nesterov=True)
    for present in PRESENT.values():
        start = x.detach().numpy().copy()
        x.grad = torch.from_numpy(np.mean([start - steps(i, start) for i in present], axis=0))
        outer.step()
        yield x.detach().numpy().copy()


def adaptive_clipping() -> Iterator[np.ndarray]:
    x, bound = np.zeros(3), 1.0
    for present in PRESENT.values():
        updates = [steps(i, x) - x for i in present]
        norms = [float(np.linalg.norm(update)) for update in updates]
        x = x + np.mean([u * min(1, bound / norm) for u, norm in zip(updates, norms, strict=True)], axis=0)
        bound *= np.exp(-0.2 * (np.mean([norm <= bound for norm in norms]) - 0.7))
        yield x


REFERENCES: Mapping[str, tuple[Callable[[], Iterator[np.ndarray]], dict[str, float]]] = {
    "fednova": (fednova, {}),
    "scaffold": (scaffold, {"server-lr": 0.5}),
    "feddyn": (feddyn, {"feddyn-alpha": 0.3}),
    "diloco": (diloco, {}),
    "adaptive-clipping": (adaptive_clipping, {"clip-first": 1.0, "clip-quantile": 0.7}),
}


# --- the same as an app ---------------------------------------------------------------------------------------------


def squares(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (output[:, 0] - targets).square()


def linear(config: Any) -> nn.Module:
    layer = nn.Linear(3, 1, bias=False)
    nn.init.zeros_(layer.weight)
    return layer


def data_of(client: int) -> Split:
    return Split(x=X[client].astype(np.float32), y=Y[client].astype(np.float32))


def fit(engine: Any, job: LocalJob) -> dict[str, float]:
    summary = train(engine, data_of(job.client), batch_size=0, steps=STEPS[job.client], seed=0, rule=job.rule)
    return {"num-examples": summary.examples, "train_loss": summary.loss}


def check(engine: Any, job: LocalJob) -> dict[str, float]:
    result = evaluate(engine, data_of(job.client))
    return {"num-examples": result.examples, "eval_loss": result.loss}


def app(**options: Any) -> LocalApp:
    given = {"model": linear, "optimizer": lambda config: OptimizerConfig(lr=RATE), "train": fit, "evaluate": check}
    return local_app(**{**given, "loss": squares, **options})


@dataclass(slots=True, kw_only=True)
class Doomed:
    """Dropouts of a simulation in which this client leaves before the sum of this exchange."""

    exchange: int
    client: int
    step: str = "input"
    _seen: int = field(default=0, init=False)

    def drops_at_step(self, cohort: Any) -> dict[int, str]:
        self._seen += 1
        return {self.client: self.step} if self._seen == self.exchange else {}

    def drops(self, cohort: Any) -> set[int]:
        return set(self.drops_at_step(cohort))


def simulated(strategy: str, aggregation: str, *, client: LocalApp | None = None, **config: Any) -> list[ModelState]:
    """The global models after each round."""
    config = {"strategy": strategy, "num-server-rounds": ROUNDS, **REFERENCES.get(strategy, (None, {}))[1], **config}
    models: list[ModelState] = []
    events: list[Any] = []
    with load_app(client or app(), config) as found:
        run = Watched(
            app=found.app,
            clients=len(CLIENTS),
            run_config=found.app.run_config,
            settings=JobSettings.from_mapping({"aggregation": aggregation, "w-max": 32}),
            dropouts=Doomed(exchange=5, client=2),
            emit=events.append,
            done=events,
            away={2: (3,)},
            models=models,
        )
        final = run.run().state
    assert final is not None
    return [*models[1:], final]


@dataclass(slots=True, kw_only=True)
class Watched(Absences):
    """Keeps what every training begins with."""

    models: list[ModelState]

    def exchange(self, request: Any) -> Any:
        if request.message_type == "train":
            self.models.append(request.model)
        return super(Watched, self).exchange(request)

    def ask(self, request: Any) -> Any:
        if request.messages[0].message_type == "train":
            record = next(iter(request.contents[0].records.array_records.values()))
            self.models.append(state_from_arrays(record))
        return super(Watched, self).ask(request)


def weights(models: list[ModelState]) -> np.ndarray:
    return np.array([model["weight"].reshape(3) for model in models], np.float64)


@pytest.mark.parametrize("aggregation", ["plain", "secure"])
@pytest.mark.parametrize("strategy", REFERENCES)
def test_every_round_is_that_of_the_paper(strategy: str, aggregation: str) -> None:
    expected = np.array(list(REFERENCES[strategy][0]()))
    found = weights(simulated(strategy, aggregation))
    scale = np.abs(expected).max()
    # float32 in plain sums, and the codec's steps in secure ones: 32-bit fields, 96 bits for small tensors.
    np.testing.assert_allclose(found, expected, rtol=0, atol=scale * (3e-6 if aggregation == "plain" else 1e-5))


# --- what the papers say of them ------------------------------------------------------------------------------------


def optimum(weight: Mapping[int, float]) -> np.ndarray:
    """Where the weighted mean of the clients' gradients is zero."""
    hessian = sum(weight[i] * 2 / len(X[i]) * X[i].T @ X[i] for i in CLIENTS)
    return np.asarray(np.linalg.solve(hessian, sum(weight[i] * 2 / len(X[i]) * X[i].T @ Y[i] for i in CLIENTS)))


def distance_after(
    strategy: str,
    rounds: int,
    target: np.ndarray,
    *,
    rate: float = RATE / 2,
    begin: np.ndarray | None = None,
    **options: Any,
) -> float:
    """From the optimum, of a run in which everybody takes part in every round."""
    config = {"strategy": strategy, "num-server-rounds": rounds, "fraction-evaluate": 0.0, **options}
    with load_app(app(optimizer=lambda config: OptimizerConfig(lr=rate)), config) as found:
        run = Simulation(
            app=found.app,
            clients=4,
            run_config=found.app.run_config,
            settings=JobSettings.from_mapping({"w-max": 32, "field-bits": 32}),
            initial=None if begin is None else ModelState.from_arrays({"weight": begin.reshape(1, 3).astype("f4")}),
        )
        state = run.run().state
    assert state is not None
    return float(np.linalg.norm(state["weight"].reshape(3) - target))


def test_fednova_stays_at_the_optimum_that_unequal_steps_leave() -> None:
    """Wang et al. 2020, theorem 1: FedAvg weighs a client by its steps as well. They are small: this is no drift."""
    n = sum(EXAMPLES.values())
    target = optimum({i: EXAMPLES[i] / n for i in CLIENTS})
    fedavg, fednova = (
        distance_after(strategy, 5, target, rate=RATE / 100, begin=target) for strategy in ("fedavg", "fednova")
    )
    assert fednova < 0.1 * fedavg


def test_scaffold_and_feddyn_have_no_client_drift() -> None:
    """Karimireddy et al. 2020, theorem III: local steps of unlike clients end up off the optimum, corrected in it."""
    target = optimum(dict.fromkeys(CLIENTS, 1.0))
    fedavg = distance_after("fedavg", 15, target, begin=target)  # which leaves the optimum for its own fixed point
    assert distance_after("scaffold", 15, target, begin=target) < 0.1 * fedavg
    assert distance_after("feddyn", 15, target, begin=target, **{"feddyn-alpha": 3.0}) < 0.2 * fedavg


# --- what cannot be true is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["fednova", "adaptive-clipping"])
def test_a_strategy_that_reads_metrics_is_refused_under_differential_privacy(strategy: str) -> None:
    made = make_strategy({"strategy": strategy}, trained=["weight"], min_available_nodes=1)
    grid = SecureGrid(cast(Any, None), run_id=1, noised=True)
    with raises(ConfigurationError, check="reads-metrics", match=rf"{strategy}.*dp-epsilon"):
        made.configure_train(1, ArrayRecord(), ConfigRecord(), grid)


@pytest.mark.parametrize("strategy", ["scaffold", "feddyn"])
def test_a_strategy_that_adds_up_means_is_refused_where_uploads_are_compressed(strategy: str) -> None:
    made = make_strategy({"strategy": strategy}, trained=["weight"], min_available_nodes=1)
    grid = SecureGrid(cast(Any, None), run_id=1, compressed=True)
    with raises(ConfigurationError, check="adds-up-means", match=rf"{strategy}.*upload-fraction"):
        made.configure_train(1, ArrayRecord(), ConfigRecord(), grid)


def test_an_app_that_does_not_pass_the_rule_on_is_told_so() -> None:
    def deaf(engine: Any, job: LocalJob) -> dict[str, float]:
        summary = train(engine, data_of(job.client), batch_size=0, steps=1, seed=0)
        return {"num-examples": summary.examples}

    with raises(AppError, check="rule-unused", match=r"scaffold.*rule=job\.rule"):
        simulated("scaffold", "secure", client=app(train=deaf))


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_an_optimizer_whose_steps_have_no_length_is_refused(name: str) -> None:
    adaptive = app(optimizer=lambda config: OptimizerConfig(name=name, lr=RATE))
    with raises(ConfigurationError, check="optimizer-unknown", match=r"fednova.*Adam"):
        simulated("fednova", "secure", client=adaptive)


def test_momentum_that_outlives_a_round_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"scaffold.*optimizer_state = \"reset\""):
        simulated("scaffold", "secure", client=app(optimizer_state="keep"))


# --- beside other parts of a model ----------------------------------------------------------------------------------


def with_statistics(config: Any) -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(3, affine=False), linear(config))


@pytest.mark.parametrize("strategy", REFERENCES)
def test_running_statistics_are_averaged_as_ever(strategy: str) -> None:
    """They are no gradient's doing: the algorithm is about parameters."""
    plain = simulated("fedavg", "secure", client=app(model=with_statistics), **{"num-server-rounds": 1})[-1]
    found = simulated(strategy, "secure", client=app(model=with_statistics), **{"num-server-rounds": 1})[-1]
    assert found.layout == plain.layout
    weights_one = strategy != "fednova"
    for name in ("0.running_mean", "0.running_var"):
        expected = plain[name]
        if weights_one:  # FedAvg weighs by examples, these do not
            assert not np.allclose(found[name], expected, rtol=1e-3)
        else:
            np.testing.assert_allclose(found[name], expected, rtol=1e-4)
    assert not np.allclose(found["1.weight"], plain["1.weight"], rtol=1e-3)


@pytest.mark.parametrize("strategy", ["fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad"])
def test_clients_take_whatever_dtypes_flowers_strategies_send(strategy: str) -> None:
    """From round 2 on they send float64 where the model has float32 (FedAdam) or counts batches (all)."""
    options = {"client": app(model=with_statistics), "num-server-rounds": 2}
    plain, secure = (simulated(strategy, aggregation, **options) for aggregation in ("plain", "secure"))
    assert "F64" in {spec.dtype for spec in plain[0].layout.specs}  # what the clients began round 2 with
    assert plain[-1].layout == secure[-1].layout
    assert plain[-1]["0.num_batches_tracked"].dtype == np.int64
    for name in plain[-1]:
        np.testing.assert_allclose(plain[-1][name], secure[-1][name], rtol=1e-3, atol=1e-3)


@dataclass(slots=True, kw_only=True)
class Spent(Simulation):
    """Its budget is spent before the first sum."""

    def exchange(self, request: Any) -> Any:
        raise BudgetSpent("spent")


def test_what_travels_beside_the_model_is_in_no_model_that_a_run_leaves() -> None:
    with load_app(app(), {"strategy": "scaffold", "num-server-rounds": 1}) as found:
        run = Spent(app=found.app, clients=4, run_config=found.app.run_config, settings=JobSettings())
        state = run.run().state
    assert state is not None
    assert list(state) == ["weight"]
