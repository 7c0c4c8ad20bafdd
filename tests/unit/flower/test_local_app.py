"""Apps on an engine: what is shared, what stays, and that Flower's own runtime sees an ordinary ClientApp."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, Metadata, RecordDict
from support.raising import raises
from torch import nn

from fedcore.data import Split
from fedcore.errors import AppError, ConfigurationError
from fedcore.flower.apps import progress_protocol
from fedcore.flower.apps.engine_app import LocalJob, local_app
from fedcore.flower.apps.own_model_store import ContextStore
from fedcore.flower.apps.personalization import Personal
from fedcore.state import MemorySink, ModelState
from fedcore.training import OptimizerConfig, evaluate, seeded, train
from fedcore.training.metrics import accuracy

CONFIG = {"lr": 0.1}
SHARED = ("body.weight", "body.bias", "norm.weight", "norm.bias")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 6)).astype(np.float32)
DATA = {
    1: Split(x=X[:25], y=(X[:25, 0] > 0).astype(np.int64)),
    2: Split(x=X[25:], y=(X[25:, 0] < 0).astype(np.int64)),  # the other way round: one head cannot serve both
}


def network(config: Any) -> nn.Module:
    with seeded(3):
        model = nn.Sequential()
        model.add_module("body", nn.Linear(6, 8))
        model.add_module("norm", nn.BatchNorm1d(8))
        model.add_module("head", nn.Linear(8, 2))
        return model


def fit(engine, job):
    summary = train(engine, DATA[job.client], batch_size=5, epochs=2, seed=job.server_round, rule=job.rule)
    return {"num-examples": summary.examples, "loss": summary.loss}


def check(engine, job):
    result = evaluate(engine, DATA[job.client])
    return {"num-examples": result.examples, "accuracy": result.accuracy}


def app(momentum=0.0, **options):
    return local_app(
        model=network,
        optimizer=lambda config: OptimizerConfig(lr=float(config["lr"]), momentum=momentum),
        train=fit,
        evaluate=check,
        **options,
    )


def initial(leave_out=()):
    state = network(CONFIG).state_dict()
    return ModelState.from_arrays({n: t.numpy().copy() for n, t in state.items() if not n.startswith(tuple(leave_out))})


def node(client=1):
    return Context(run_id=1, node_id=client, node_config={}, state=RecordDict(), run_config=dict(CONFIG))


class Client:
    """One client of an app; several may share it, as in a simulation."""

    def __init__(self, app_, client=1):
        self.app, self.client, self.store = app_, client, ContextStore(node(client))

    def _job(self, server_round, message):
        values = {"server-round": server_round, **message}
        return LocalJob(config=CONFIG, node={}, message=values, client=self.client)

    def train(self, model, server_round=1, **message):
        job = self._job(server_round, message)
        return self.app.run(job, model, trains=True, store=self.store).state()

    def kept(self):
        return self.store.load(initial().layout)

    def test(self, model, server_round=1):
        return self.app.run(self._job(server_round, {}), model, trains=False, store=self.store).metrics


def distance(a, b):
    """Between the parameters; running statistics follow the data and not the pull."""
    names = [name for name in a if name.endswith((".weight", ".bias"))]
    return sum(float(np.square(a[name].astype(np.float64) - b[name]).sum()) for name in names) ** 0.5


def same(a, b):
    return list(a) == list(b) and all(np.array_equal(a[n], b[n]) for n in a)


class TestSharing:
    def test_training_starts_from_the_model_that_was_sent(self):
        client = Client(app())
        zeros = ModelState.from_arrays({name: np.zeros_like(value) for name, value in initial().items()})
        first, from_zeros = client.train(initial()), client.train(zeros)
        assert not same(first, from_zeros)
        assert same(client.train(initial()), first)  # nothing of the rounds between is left
        assert first.layout == initial().layout

    def test_a_model_of_another_app_is_refused(self):
        other = ModelState.from_arrays({"weight": np.zeros(3, np.float32)})
        with raises(ConfigurationError, check="tensor-names", match=r"'body\.weight'"):
            Client(app()).train(other)

    @pytest.mark.parametrize("metrics", [{}, {"num-examples": 1.5}, {"num-examples": -1}, {"num-examples": [1]}])
    def test_metrics_without_a_number_of_examples_are_refused(self, metrics):
        wrong = local_app(
            model=network,
            optimizer=lambda config: OptimizerConfig(),
            train=lambda engine, job: metrics,
            evaluate=check,
        )
        with pytest.raises(AppError, match="num-examples"):
            Client(wrong).train(initial())

    def test_flower_runs_it_too(self):
        """The same bits through records and Messages."""
        context = node()
        content = RecordDict(
            {
                "arrays": ArrayRecord(network(CONFIG).state_dict()),
                "config": ConfigRecord({"server-round": 1}),
            }
        )
        metadata = Metadata(
            run_id=1,
            message_id="m",
            src_node_id=0,
            dst_node_id=1,
            reply_to_message_id="",
            group_id="",
            created_at=0.0,
            ttl=1e12,
            message_type="train",
        )
        reply = app()(Message(content, metadata=metadata), context)
        expected = Client(app()).train(initial())
        found = reply.content.array_records["arrays"].to_torch_state_dict()
        assert list(found) == list(expected)
        assert all(np.array_equal(found[name].numpy(), expected[name]) for name in expected)
        assert reply.content.metric_records["metrics"]["num-examples"] == 25


class TestPersonal:
    def test_what_is_personal_never_leaves_and_comes_back(self):
        """FedPer: two clients with opposite labels share a body, and each keeps a head that suits it."""
        shared = app(personal=lambda config: Personal(patterns=("head.*",)))
        clients = [Client(shared, 1), Client(shared, 2)]
        model = initial(leave_out=("head",))
        for server_round in range(1, 16):
            states = [client.train(model, server_round) for client in clients]
            assert all(state.layout == model.layout for state in states)
            mean = {n: np.mean([s[n] for s in states], axis=0).astype(states[0][n].dtype) for n in model}
            model = ModelState.from_arrays(mean)
        accuracies = [client.test(model)["accuracy"] for client in clients]
        assert min(accuracies) > 0.9
        # With one head for both, one of them has to be wrong.
        plain = Client(app(), 1).train(initial(), 1)
        assert Client(app(), 2).test(plain)["accuracy"] < 0.6

    def test_a_server_begins_with_what_is_shared(self):
        shared = app(personal=lambda config: Personal(patterns=("head.*",)))
        arrays = shared.initial_arrays(CONFIG)
        assert list(arrays) == list(initial(leave_out=("head",)))
        assert np.array_equal(arrays["body.weight"].numpy(), initial()["body.weight"])

    def test_the_server_cannot_send_what_is_personal(self):
        client = Client(app(personal=lambda config: Personal(patterns=("norm.*",))))
        with raises(ConfigurationError, check="tensor-names", match=r"'norm\."):
            client.train(initial())

    def test_a_client_that_kept_nothing_begins_with_the_app_s_own_values(self):
        shared = app(personal=lambda config: Personal(patterns=("head.*",)))
        model = initial(leave_out=("head",))
        first = Client(shared, 1).test(model)
        Client(shared, 2).train(model)  # the engine now holds the head of another client
        assert Client(shared, 1).test(model) == first

    def test_fedbn_keeps_the_normalisation(self):
        shared = app(personal=lambda config: Personal(batch_norm=True))
        state = Client(shared).train(initial(leave_out=("norm",)))
        assert list(state) == ["body.weight", "body.bias", "head.weight", "head.bias"]

    @pytest.mark.parametrize("patterns", [("tail.*",), ("*",)])
    def test_patterns_that_match_nothing_or_everything_are_refused(self, patterns):
        with pytest.raises(ConfigurationError):
            Client(app(personal=lambda config: Personal(patterns=patterns))).train(initial())

    def test_the_fine_tuned_model_is_kept_and_measured_beside_the_global_one(self):
        client = Client(app(personal=lambda config: Personal(keep_model=True)))
        before = client.test(initial())
        assert before["personal_accuracy"] == before["accuracy"]  # nothing kept yet
        trained = client.train(initial())
        assert same(client.kept(), trained)
        after = client.test(initial())
        assert after["accuracy"] == before["accuracy"]
        assert after["personal_accuracy"] > after["accuracy"]
        assert set(after) == {"accuracy", "personal_accuracy"}

    def test_ditto_trains_a_model_of_its_own_and_sends_the_other(self):
        plain = Client(app()).train(initial())
        near = Client(app(personal=lambda config: Personal(ditto=3.0)))
        far = Client(app(personal=lambda config: Personal(ditto=0.01)))
        for client in (near, far):
            assert same(client.train(initial()), plain)  # what is sent is what FedAvg sends
        assert distance(near.kept(), initial()) < 0.7 * distance(far.kept(), initial())
        first = near.kept()
        near.train(initial(), 2)
        assert not same(near.kept(), first)  # it goes on from where it was
        assert set(near.test(initial())) == {"accuracy", "personal_accuracy"}

    def test_ditto_goes_with_no_other_way(self):
        with pytest.raises(ConfigurationError, match="ditto"):
            Personal(ditto=0.1, keep_model=True)


class TestProximal:
    def test_fedprox_stays_nearer_to_the_global_model(self):
        free, pulled = Client(app()).train(initial()), Client(app()).train(initial(), **{"proximal-mu": 5.0})
        assert distance(pulled, initial()) < 0.7 * distance(free, initial())

    def test_its_gradient_is_that_of_the_penalty(self):
        """One full-batch step by hand, from a model that is not the anchor after the first step."""
        mu, lr = 0.5, 0.1
        data = DATA[1]

        def fit_two(engine, job):
            train(engine, data, batch_size=0, steps=2, seed=0, rule=job.rule)
            return {"num-examples": len(data)}

        linear = local_app(
            model=lambda config: copy.deepcopy(start),
            optimizer=lambda config: OptimizerConfig(lr=lr),
            train=fit_two,
            evaluate=check,
        )
        with seeded(1):
            start = nn.Linear(6, 2)
        sent = ModelState.from_arrays({n: t.detach().numpy().copy() for n, t in start.state_dict().items()})
        found = Client(linear).train(sent, **{"proximal-mu": mu})
        model = copy.deepcopy(start)
        for _ in range(2):
            model.zero_grad()
            loss = nn.functional.cross_entropy(model(torch.tensor(data.x)), torch.tensor(data.y))
            penalty = sum(
                (p - q.detach()).square().sum() for p, q in zip(model.parameters(), start.parameters(), strict=True)
            )
            (loss + mu / 2 * penalty).backward()
            with torch.no_grad():
                for p in model.parameters():
                    p.sub_(lr * p.grad)
        for name, value in model.state_dict().items():
            np.testing.assert_allclose(found[name], value.numpy(), rtol=0, atol=1e-6)


class TestOptimizerState:
    def test_reset_forgets_and_keep_remembers_each_client(self):
        model = initial()
        reset, keep = app(momentum=0.9), app(momentum=0.9, optimizer_state="keep")
        fresh, warm = Client(reset), Client(keep)
        assert same(fresh.train(model), warm.train(model))
        again = warm.train(model)
        assert same(fresh.train(model), fresh.train(model))
        assert not same(again, fresh.train(model))
        # Another client of the same engine in between changes nothing.
        shared = app(momentum=0.9, optimizer_state="keep")
        one, two = Client(shared, 1), Client(shared, 2)
        one.train(model)
        two.train(model)
        assert same(one.train(model), again)

    def test_the_average_travels_with_the_model(self):
        averaged = app(momentum=0.9, optimizer_state="average", personal=lambda config: Personal(patterns=("head.*",)))
        arrays = averaged.initial_arrays(CONFIG)
        momenta = [name for name in arrays if name.startswith("optimizer.momentum_buffer.")]
        assert momenta == [f"optimizer.momentum_buffer.{part}" for part in SHARED]
        model = ModelState.from_arrays({name: array.numpy() for name, array in arrays.items()})
        client = Client(averaged)
        first = client.train(model)
        assert first.layout == model.layout
        assert all(np.abs(first[name]).max() > 0 for name in momenta)
        # What comes with the model is what counts, not what the client did before.
        again = client.train(first, 2)
        forgotten = ModelState.from_arrays({name: first[name] * (name not in momenta) for name in first})
        assert not same(again, client.train(forgotten, 2))

    def test_ditto_needs_fresh_momenta(self):
        with pytest.raises(ConfigurationError, match="ditto"):
            Client(app(optimizer_state="keep", personal=lambda config: Personal(ditto=1.0))).train(initial())


def test_saving_writes_a_file_that_holds_the_new_model(tmp_path: Path):
    client = Client(app())
    job = LocalJob(config=CONFIG, node={}, message={"server-round": 1}, client=1)
    result = client.app.run(job, initial(), trains=True, store=client.store)
    result.save(tmp_path / "new.safetensors")
    sink = MemorySink(result.layout)
    result.write(sink)
    assert same(ModelState.open(tmp_path / "new.safetensors"), sink.state())


def test_what_training_took_is_told_to_who_asks_for_it(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    client = Client(app())
    client.train(initial())
    assert capsys.readouterr().out == ""
    monkeypatch.setenv(progress_protocol.PROGRESS_VARIABLE, "1")
    client.train(initial(), server_round=2)
    client.test(initial(), server_round=2)
    # Two epochs of 25 examples, which are reported with a weight of 25; without `data` nobody else can test it.
    assert list(progress_protocol.parse_progress(capsys.readouterr().out.splitlines())) == [
        progress_protocol.TrainingProgress(round=2, examples=50)
    ]


def test_a_test_is_told_by_the_apps_metrics_whatever_its_own_function_reports(capsys, monkeypatch) -> None:
    client = Client(app(data=lambda job: (DATA[1], DATA[job.client]), metrics=(accuracy,)), client=2)
    monkeypatch.setenv(progress_protocol.PROGRESS_VARIABLE, "1")
    metrics = client.test(initial(), server_round=3)
    (progress,) = progress_protocol.parse_progress(capsys.readouterr().out.splitlines())
    assert (progress.round, progress.examples, progress.sums["accuracy"][1]) == (3, 15, 15.0)
    assert progress.sums["accuracy"][0] / 15 == metrics["accuracy"]
