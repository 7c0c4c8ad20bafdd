"""Layers that know the federation's statistics: in the first model, and with it wherever it goes."""

import math

import numpy as np
import torch
from support.raising import raises
from torch import nn

from fedcore import LocalJob, TrainingColumns, supervised_app
from fedcore.errors import UsageError
from fedcore.flower.records import state_from_arrays
from fedcore.training import OptimizerConfig
from fedcore.training.models import Rescale, Standardise
from fedcore.training.models.columns import set_statistics, statistics_in

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
