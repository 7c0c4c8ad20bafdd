"""Layers that know the federation's statistics: in the first model, and with it wherever it goes."""

import math

import numpy as np
import pytest
import torch
from support.raising import raises
from torch import nn

from fedcore import LocalJob, TrainingColumns, supervised_app
from fedcore.data.types import Split
from fedcore.errors import ConfigurationError, UsageError
from fedcore.flower.records import state_from_arrays
from fedcore.training import OptimizerConfig, local_engine, losses, train
from fedcore.training.models import ClassWeights, Rescale, Standardise
from fedcore.training.models.columns import MUCH_BEYOND, remarks_on_scale, set_statistics, statistics_in

KNOWN = {
    "statistics-columns": ["b", "a", "same", "y"],
    "statistics-mean": [2.0, 10.0, 5.0, 100.0],
    "statistics-std": [0.5, 5.0, 0.0, 20.0],
}


def test_columns_are_standardised_by_name_and_missing_values_are_means() -> None:
    layer = Standardise(["a", "unasked", "b", "same"])
    set_statistics(nn.Sequential(layer), KNOWN)
    x = torch.tensor([[15.0, 7.0, 1.0, 5.0], [math.nan, 7.0, math.nan, math.nan]])
    assert layer(x).tolist() == [[1.0, 7.0, -2.0, 0.0], [0.0, 7.0, 0.0, 0.0]]


def test_a_column_without_a_value_anywhere_is_0() -> None:
    layer = Standardise(["a", "empty"])
    known = {
        "statistics-columns": ["a", "empty"],
        "statistics-mean": [10.0, math.nan],
        "statistics-std": [5.0, math.nan],
    }
    set_statistics(layer, known)
    assert layer(torch.tensor([[15.0, math.nan], [5.0, 3.0]])).tolist() == [[1.0, 0.0], [-1.0, 0.0]]


def test_a_trained_model_says_what_its_columns_were_told() -> None:
    model = nn.Sequential(Standardise(["a", "b"]), nn.Linear(2, 1), Rescale(["y"]))
    assert statistics_in(model, state_of(model)) == {}, "it was told nothing yet"
    set_statistics(model, KNOWN)
    trained = state_of(model)
    other = nn.Sequential(Standardise(["a", "b"]), nn.Linear(2, 1), Rescale(["y"]))
    set_statistics(other, statistics_in(other, trained))
    assert all((state_of(other)[name] == trained[name]).all() for name in ("0.mean", "0.std", "2.mean", "2.std"))
    assert statistics_in(other, {"0.mean": trained["0.mean"]}) == {}, "another app's"


def test_a_site_hears_which_of_its_columns_lie_far_off_the_scale() -> None:
    layer = Standardise(["a", "b", "ward=north", "same"], limit=3.0, spreads={"ward=north": 0.1})
    model = nn.Sequential(layer, nn.Linear(4, 1))
    near = np.tile(np.array([12.0, 2.5, 1.0, 5.0], np.float32), (100, 1))
    assert remarks_on_scale(model, near) == [], "nothing is known yet"
    set_statistics(model, KNOWN)
    near[: int(100 * MUCH_BEYOND), 0] = 26.0  # as many as may be
    near[50:, 1] = np.nan
    near[:, 3] = 9.0
    assert remarks_on_scale(model, near) == []
    near[: int(100 * MUCH_BEYOND) + 1, 0] = 26.0
    (line,) = remarks_on_scale(model, near)
    assert "'a'" in line
    assert "26" not in line, "no value of a cell"
    assert remarks_on_scale(model, near[:, :2]) == [], "rows of another table"


def state_of(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy() for name, value in model.state_dict().items()}


def test_answers_come_back_in_the_targets_units() -> None:
    layer = Rescale(["y"])
    set_statistics(layer, KNOWN)
    assert layer(torch.tensor([[0.0], [-2.0]])).tolist() == [[100.0], [60.0]]


def test_without_statistics_nothing_is_trained_and_no_answer_is_a_number() -> None:
    layer = Standardise(["a"])
    with raises(UsageError, check="no-statistics", match="Standardise"):
        layer(torch.ones(2, 1))
    assert layer.eval()(torch.ones(2, 1)).isnan().all()


def test_the_first_model_has_them() -> None:
    def no_data(job: LocalJob) -> tuple:
        raise AssertionError

    app = supervised_app(
        model=lambda config: nn.Sequential(Standardise(["a"]), nn.Linear(1, 1)),
        optimizer=lambda config: OptimizerConfig(),
        data=no_data,
        columns=TrainingColumns(names=("a",)),
    )
    state = state_from_arrays(app.initial_arrays({}, KNOWN))
    assert state["0.mean"].tolist() == [10.0]
    assert state["0.std"].tolist() == [5.0]


def test_with_bounds_nobody_is_asked_and_nothing_of_it_travels() -> None:
    layer = Standardise(["a", "b"], bounds={"a": (0.0, 12.0)})
    x = torch.tensor([[6.0, 7.0], [6.0 + math.sqrt(12), math.nan]])
    assert torch.allclose(layer(x), torch.tensor([[0.0, 7.0], [1.0, 0.0]]))
    assert layer.state_dict() == {}, "a private run would add noise to it"
    assert Rescale(["a"], bounds={"a": (0.0, 12.0)})(torch.zeros(1, 1)).tolist() == [[6.0]]


def test_values_beyond_the_limit_count_as_that_far() -> None:
    layer = Standardise(["a", "same"], limit=3.0)
    set_statistics(layer, KNOWN)
    x = torch.tensor([[1e6, 5.0], [-1e6, math.nan], [15.0, 5.0], [math.nan, 5.0]])
    assert layer(x).tolist() == [[3.0, 0.0], [-3.0, 0.0], [1.0, 0.0], [0.0, 0.0]]
    with raises(UsageError, check="limit"):
        Standardise(["a"], limit=0.0)


def test_columns_without_statistics_have_the_spread_that_they_are_said_to_have() -> None:
    layer = Standardise(["a", "stage=I", "other"], spreads={"stage=I": 0.5, "a": 100.0})
    set_statistics(layer, KNOWN)
    assert layer(torch.tensor([[15.0, 1.0, 1.0]])).tolist() == [[1.0, 2.0, 1.0]]


SHARES = {
    "statistics-columns": ["y=0", "y=1", "y=2"],
    "statistics-mean": [0.6, 0.3, 0.1],
    "statistics-std": [0.49, 0.46, 0.3],
}


def test_balanced_classes_weigh_alike_and_answers_are_of_the_classes_as_they_are() -> None:
    layer = ClassWeights(3)
    set_statistics(layer, SHARES)
    output = torch.tensor([[1.0, 2.0, 3.0]])
    assert torch.equal(layer.train()(output), output)
    corrected = layer.eval()(output).softmax(dim=1)
    by_bayes = output.softmax(dim=1) * torch.tensor([0.6, 0.3, 0.1])
    assert torch.allclose(corrected, by_bayes / by_bayes.sum())
    weights = layer.example_weights(torch.tensor([0, 1, 2]))
    assert weights is not None
    assert weights.tolist() == [pytest.approx(1 / (3 * share)) for share in (0.6, 0.3, 0.1)]


def test_one_logit_is_corrected_by_the_odds() -> None:
    layer = ClassWeights(2)
    set_statistics(
        layer, {"statistics-columns": ["y=0", "y=1"], "statistics-mean": [0.9, 0.1], "statistics-std": [0.3, 0.3]}
    )
    assert layer.eval()(torch.tensor([[0.0]])).item() == pytest.approx(math.log(0.1 / 0.9))


def test_without_class_weights_the_layer_is_nothing() -> None:
    layer = ClassWeights(2, "none")
    output = torch.tensor([[0.5]])
    assert not layer.state_dict()
    assert layer.eval()(output) is output
    assert layer.example_weights(torch.tensor([1])) is None
    with raises(ConfigurationError, check="class-weight"):
        ClassWeights(2, "rare")


def test_a_step_weighs_examples_by_their_classes() -> None:
    x, y = np.array([[1.0], [2.0], [3.0], [5.0]], np.float32), np.array([0, 0, 0, 1])
    models = [nn.Sequential(nn.Linear(1, 1), ClassWeights(2, kind)) for kind in ("balanced", "none")]
    for model in models:
        nn.init.zeros_(model[0].weight)
        nn.init.zeros_(model[0].bias)
    set_statistics(models[0], {**SHARES, "statistics-mean": [0.75, 0.25, 0.0]})
    for model in models:
        engine = local_engine(model, OptimizerConfig(lr=1.0), loss=losses.binary_cross_entropy)
        train(engine, Split(x=x, y=y), batch_size=0, seed=0, epochs=1)
    # At 0 the gradient of an example is (1/2 - y) x: the mean over all, with weights 2/3 and 2.
    assert models[0][0].weight.item() == pytest.approx(-(2 / 3 * (0.5 + 1 + 1.5) - 2 * 2.5) / 4)
    assert models[0][0].bias.item() == pytest.approx(0, abs=1e-7)
    assert models[1][0].weight.item() == pytest.approx(-(0.5 + 1 + 1.5 - 2.5) / 4)


def test_a_loss_over_the_batch_has_no_class_weights() -> None:
    model = nn.Sequential(nn.Linear(1, 1), ClassWeights(2))
    set_statistics(model, SHARES)
    over_batch = losses.Loss("own", lambda output, targets: output.square().mean(), over="batch")
    engine = local_engine(model, OptimizerConfig(lr=1.0), loss=over_batch)
    with raises(ConfigurationError, check="class-weights"):
        train(engine, Split(x=np.ones((2, 1), np.float32), y=np.array([0, 1])), batch_size=0, seed=0, epochs=1)


def test_shares_of_classes_are_asked_if_they_are_to_be_weighed() -> None:
    columns = TrainingColumns(names=("a",), bounds=lambda config: {"a": (0.0, 9.0)}, classes=3)
    part = Split(x=np.array([[1.0], [2.0], [3.0], [4.0]], np.float32), y=np.array([0, 2, 2, 0]))
    jobs = [LocalJob(config={}, node={}, message={}, client=0)]
    asked = columns.pooled({"class-weight": "balanced"}, lambda job: (part, part), jobs)
    assert asked["statistics-columns"] == ["a", "y=0", "y=1", "y=2"]
    assert asked["statistics-mean"] == pytest.approx([2.5, 0.5, 0.0, 0.5])
    assert columns.pooled({"class-weight": "none"}, lambda job: (part, part), jobs)["statistics-columns"] == ["a"]
