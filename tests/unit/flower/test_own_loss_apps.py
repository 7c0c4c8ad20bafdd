"""Apps with a loss and metrics of their own: what they report, and what decides where nothing is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from support.raising import raises
from torch import nn

from fedcore.data import Split
from fedcore.errors import ConfigurationError
from fedcore.flower.app import FlowerApp
from fedcore.flower.apps.engine_app import LocalJob, local_app
from fedcore.flower.apps.own_model_store import ContextStore
from fedcore.flower.apps.supervised import supervised_app
from fedcore.flower.clientside import ClientRunner
from fedcore.run.engine_config import EngineConfig
from fedcore.state import ModelState
from fedcore.training import Loss, OptimizerConfig, evaluate, seeded
from fedcore.training.losses import (
    absolute_error,
    binary_cross_entropy,
    cox,
    cross_entropy,
    multi_label,
    squared_error,
)
from fedcore.training.metrics import accuracy, auc, c_index, f1, mae, r2, rmse

CONFIG = {"batch-size": 0, "local-epochs": 0, "local-steps": 80, "seed": 1}
SITES = (30, 50)
RNG = np.random.default_rng(0)
X = [RNG.normal(size=(n, 3)).astype(np.float32) for n in SITES]
SIGNAL = [x @ np.array([1.0, -2.0, 0.5], np.float32) for x in X]


def labels(kind, signal):
    """Targets of a kind, which a linear model can learn."""
    time = np.exp(-signal)
    return {
        "classes": (signal > 0).astype(np.int64),
        "probability": (signal > 0).astype(np.float32),
        "several": np.stack([signal > 0, signal > 1], axis=1).astype(np.float32),
        "numbers": signal * 3,
        "survival": np.stack([time, np.arange(len(time)) % 3 > 0], axis=1).astype(np.float32),
    }[kind]


def linear(outputs):
    with seeded(0):
        return nn.Linear(3, outputs)


def app_of(kind, outputs=1, lr=0.5, **options):
    splits = [Split(x=x, y=labels(kind, signal)) for x, signal in zip(X, SIGNAL, strict=True)]
    return supervised_app(
        model=lambda config: linear(outputs),
        optimizer=lambda config: OptimizerConfig(lr=lr),
        data=lambda job: (splits[int(job.node["partition-id"])],) * 2,
        **options,
    )


def run(app, site=0, *, trains=False, model=None):
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=dict(CONFIG))
    if model is None:
        model = ModelState.from_arrays({n: a.numpy() for n, a in app.initial_arrays(CONFIG).items()})
    job = LocalJob(config=CONFIG, node={"partition-id": site}, message={"server-round": 1}, client=1)
    return app.run(job, model, trains=trains, store=ContextStore(context))


@pytest.mark.parametrize(
    ("kind", "outputs", "options", "good"),
    [
        ("classes", 2, {}, {"accuracy": 0.9}),
        ("classes", 1, {}, {"accuracy": 0.9}),
        ("classes", 2, {"metrics": (f1(), auc())}, {"f1": 0.9, "auc": 0.95}),
        ("probability", 1, {"loss": binary_cross_entropy, "metrics": (auc(),)}, {"auc": 0.95}),
        ("several", 2, {"loss": multi_label, "metrics": (accuracy,)}, {"accuracy": 0.9}),
        ("numbers", 1, {"loss": squared_error, "metrics": (r2,), "lr": 0.1}, {"r2": 0.95}),
        ("numbers", 1, {"loss": lambda output, y: (output.squeeze(1) - y).abs(), "metrics": (r2,)}, {"r2": 0.9}),
        ("survival", 1, {"loss": cox, "metrics": (c_index,)}, {"c_index": 0.9}),
    ],
)
def test_it_learns_by_its_loss(kind, outputs, options, good):
    app = app_of(kind, outputs, **options)
    before = run(app).metrics["eval_loss"]
    trained = run(app, trains=True)
    after = run(app, model=trained.state())
    assert after.metrics["eval_loss"] < before
    for metric in app.metrics:
        sums = after.metrics.get(metric.sums_name)
        value = after.metrics["eval_acc"] if sums is None else metric.value(torch.tensor(sums).double() * 30)
        assert value > good[metric.name]


def test_where_nothing_is_said_whole_numbers_are_classes_and_others_are_refused():
    app = app_of("classes", 2)
    assert (app.loss, app.metrics) == (cross_entropy, (accuracy,))
    assert set(run(app).metrics) == {"eval_loss", "eval_acc"}
    for kind in ("numbers", "probability", "several", "survival"):
        with pytest.raises(ConfigurationError, match="loss=squared_error"):
            run(app_of(kind), trains=True)


def test_the_loss_is_what_a_test_reports():
    found = run(app_of("numbers", loss=absolute_error, metrics=(mae,))).metrics
    assert found["mae/sums"] == [pytest.approx(found["eval_loss"]), 1.0]


def test_means_of_reported_sums_are_the_sums_of_the_federation():
    """Weighted by examples, which is what any averaging strategy does to lists."""
    app = app_of("numbers", loss=squared_error, metrics=(rmse, r2))
    replies = [run(app, site) for site in range(2)]
    weights = np.array([reply.examples for reply in replies])
    assert weights.tolist() == list(SITES)
    x, y = np.concatenate(X), labels("numbers", np.concatenate(SIGNAL))
    with torch.no_grad():
        output = linear(1)(torch.tensor(x))
    for metric in (rmse, r2):
        means = np.average([reply.metrics[metric.sums_name] for reply in replies], axis=0, weights=weights)
        found = metric.value(torch.tensor(means * weights.sum()))
        assert found == pytest.approx(metric.value(metric.sums(output, torch.tensor(y))))


def test_an_engine_that_would_cut_a_batch_is_refused_when_the_app_is_loaded():
    """And not in its first round, when others already wait for it."""
    app = FlowerApp.load(Path(__file__).parents[3] / "examples" / "cox")
    ClientRunner(app=app, client_id=1, node_config={}, engine=EngineConfig(micro_batches=1))
    with raises(ConfigurationError, check="batch-loss", match="cox.*micro-batches = 2"):
        ClientRunner(app=app, client_id=1, node_config={}, engine=EngineConfig(micro_batches=2))


class TestLocalApp:
    def app(self, **options):
        data = Split(x=X[0], y=SIGNAL[0])

        def check(engine, job):
            result = evaluate(engine, data)
            return {"num-examples": result.examples, "loss": result.loss}

        return local_app(
            model=lambda config: linear(1),
            optimizer=lambda config: OptimizerConfig(),
            train=check,
            evaluate=check,
            **options,
        )

    def test_its_own_loss_is_what_evaluate_reports(self):
        def fourth(output, targets):
            return (output.squeeze(1) - targets) ** 4

        app = self.app(loss=fourth)
        with torch.no_grad():
            expected = float(fourth(linear(1)(torch.tensor(X[0])), torch.tensor(SIGNAL[0])).mean())
        assert run(app).metrics == {"loss": pytest.approx(expected)}
        assert (app.loss, app.data, app.metrics) == (Loss("fourth", fourth), None, ())

    def test_its_data_and_metrics_are_there_for_others(self):
        def data(job):
            raise AssertionError("not for the app's own functions")

        app = self.app(loss=cox, data=data, metrics=[c_index])
        assert (app.loss, app.data, app.metrics) == (cox, data, (c_index,))

    def test_what_is_no_metric_or_loss_is_refused_at_once(self):
        with pytest.raises(ConfigurationError, match=r"auc\(\)"):
            self.app(metrics=[auc])
        with raises(ConfigurationError, check="not-a-loss", match=r"\bstr\b"):
            self.app(loss="mse")
