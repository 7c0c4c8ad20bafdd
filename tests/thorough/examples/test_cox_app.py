"""examples/cox: six sites of unlike patients, standardised by their federation and judged by the c-index."""

import numpy as np
import pytest
import torch
from support.simulated import simulate
from torch import nn
from typer.testing import CliRunner

from fedcore.cli.main import app as command
from fedcore.data import Split
from fedcore.data.statistics import standardised
from fedcore.flower.apps.tensor_app import LocalJob
from fedcore.training import evaluate, local_engine
from fedcore.training.losses import cox
from fedcore.training.metrics import c_index
from tests.thorough.examples.flower_messages import EXAMPLES, app_modules

__all__ = ["simulate"]


@pytest.fixture(scope="module")
def task():
    with app_modules("cox") as (found, _, _):
        return found


@pytest.fixture(scope="module")
def sites(task):
    return [task.patients(site, 42) for site in range(6)]


def test_sites_are_of_the_shape_of_tcga_brca(sites):
    assert [len(train) + len(test) for train, test in sites] == [250, 196, 164, 129, 80, 30]
    assert all(train.x.shape[1] == 39 and train.y.shape[1] == 2 for train, _ in sites)
    ages = [train.x[:, 0].mean() for train, _ in sites]
    deaths = [train.y[:, 1].mean() for train, _ in sites]
    assert ages[-1] - ages[0] > 8
    assert deaths[-1] > 2 * deaths[0]


def pooled_statistics(sites):
    """By NumPy, over all patients in one place."""
    x = np.concatenate([train.x for train, _ in sites]).astype(np.float64)
    return x.mean(axis=0), x.std(axis=0)


def figure(model, sites, mean, std):
    """The federation's c-index of a model, by hand: pairs of each site, added up."""
    sums = torch.zeros(3, dtype=torch.float64)
    for _, test in sites:
        x = ((test.x - mean) / std).astype(np.float32)
        result = evaluate(local_engine(model, loss=cox), Split(x=x, y=test.y), metrics=[c_index])
        sums += torch.tensor(result.sums["c_index"], dtype=torch.float64)
    return c_index.value(sums)


def test_the_federation_fits_and_finds_its_own_figure(simulate, task, sites, capfd):
    done = simulate(6, app=EXAMPLES / "cox")
    model = nn.Linear(39, 1, bias=False)
    model.load_state_dict({name: torch.tensor(array.copy()) for name, array in done.state.items()})
    expected = figure(model, sites, *pooled_statistics(sites))
    assert f"round 15: c_index {expected:.4f}" in capfd.readouterr().out
    assert expected > 0.7
    losses = [told["metrics"]["eval_loss"] for told in done.of("exchange-done") if told["message_type"] == "evaluate"]
    assert losses[-1] < losses[0]


def test_statistics_come_from_training_parts_alone_and_travel_with_every_task(task, sites):
    with app_modules("cox") as (_, client, _):
        jobs = [
            LocalJob(config={"seed": 42}, node={"partition-id": site}, message={}, client=site + 1) for site in range(6)
        ]
        mean, std = pooled_statistics(sites)
        message = client.app.columns.pooled({}, client.data, jobs)
        np.testing.assert_allclose(message["statistics-mean"], mean, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(message["statistics-std"], std, rtol=1e-6)
        train, _ = client.data(LocalJob(config={"seed": 42}, node={"partition-id": 2}, message=message, client=3))
        np.testing.assert_allclose(train.x, (sites[2][0].x - mean) / std, atol=1e-4)
        assert np.array_equal(train.x, standardised(sites[2][0].x, message, task.COLUMNS))


def test_its_statistics_need_no_options() -> None:
    done = CliRunner().invoke(command, ["stats", str(EXAMPLES / "cox"), "--clients", "6"])
    assert done.exit_code == 0, done.output
    assert "finding29 " in done.stdout
    assert "of 6 clients" in done.output
