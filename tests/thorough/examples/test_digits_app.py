"""examples/digits as Flower sees it: Messages in, Messages out."""

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord

from fedcore.data import load_digits
from fedcore.training import evaluate, local_engine
from tests.thorough.examples.flower_messages import app_modules, context, message, pooled, run_app, run_config


def arrays_of(model):
    return ArrayRecord(model.state_dict())


@pytest.fixture
def app():
    with app_modules("digits") as modules:
        yield modules


def test_a_run_reaches_95_percent_on_non_iid_parts():
    grid = run_app("digits", clients=4)
    accuracies = [pooled(replies, "eval_acc") for replies in grid.rounds("evaluate")]
    assert len(accuracies) == 15
    assert accuracies[-1] >= 0.95
    # Round one of a Dirichlet 0.5 partition is far from done, or the task shows nothing.
    assert accuracies[0] < 0.9


def test_the_mean_of_local_tests_is_the_pooled_test(app):
    task, client, _ = app
    config = run_config("digits")
    model = task.initial_model(7)
    replies = [
        client.app(message("evaluate", arrays_of(model), 1, i + 1), context(config, i, 4)).content for i in range(4)
    ]
    whole = evaluate(local_engine(model), load_digits().test)
    assert sum(r["metrics"]["num-examples"] for r in replies) == whole.examples
    assert pooled(replies, "eval_acc") == pytest.approx(whole.accuracy, abs=1e-12)
    assert pooled(replies, "eval_loss") == pytest.approx(whole.loss, rel=1e-6)


def test_replies_hold_the_records_that_fedcore_and_flower_need(app):
    task, client, _ = app
    config = run_config("digits", local_epochs=1)
    sent = arrays_of(task.initial_model(42))
    trained = client.app(message("train", sent, 1, 1), context(config, 0, 4)).content
    assert set(trained) == {"arrays", "metrics"}
    assert set(trained["metrics"]) == {"num-examples", "train_loss"}
    assert isinstance(trained["metrics"], MetricRecord)
    assert list(trained["arrays"]) == list(sent)
    tested = client.app(message("evaluate", sent, 1, 1), context(config, 0, 4)).content
    assert set(tested) == {"metrics"}
    assert set(tested["metrics"]) == {"num-examples", "eval_loss", "eval_acc"}


def trained_bytes(client, config, sent, server_round, node, clients=4):
    reply = client.app(message("train", sent, server_round, node + 1), context(config, node, clients))
    return b"".join(a.tobytes() for a in reply.content["arrays"].to_numpy_ndarrays())


def test_training_depends_on_seed_round_and_partition_only(app):
    task, client, _ = app
    config = run_config("digits", local_epochs=1)
    sent = arrays_of(task.initial_model(42))
    first = trained_bytes(client, config, sent, 3, 2)
    # Other work in between, as a worker that stays warm does.
    other_round = trained_bytes(client, config, sent, 4, 2)
    assert trained_bytes(client, config, sent, 3, 2) == first
    assert other_round != first


def test_one_partition_is_the_whole_data_set(app):
    task, _, _ = app
    train_part, test_part = task.local_data("dirichlet:0.5", 0, 1, 42)
    whole = load_digits()
    np.testing.assert_array_equal(train_part.x, whole.train.x)
    np.testing.assert_array_equal(test_part.y, whole.test.y)


def test_full_batch_fedsgd_is_the_pooled_gradient_step():
    settings = {"batch_size": 0, "local_epochs": 1, "momentum": 0.0, "num_server_rounds": 1}
    four = run_app("digits", clients=4, **settings).rounds("train")[0]
    one = run_app("digits", clients=1, **settings).rounds("train")[0][0]
    weights = [r["metrics"]["num-examples"] for r in four]
    for name, pooled_array in one["arrays"].items():
        mean = sum(r["arrays"][name].numpy().astype(np.float64) * w for r, w in zip(four, weights, strict=True)) / sum(
            weights
        )
        np.testing.assert_allclose(mean, pooled_array.numpy(), rtol=0, atol=1e-7)
