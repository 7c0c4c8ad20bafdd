"""Statistics as sums: what several clients answer together is what NumPy says of all their rows."""

from __future__ import annotations

import itertools
import math
import os
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedcore.codec.privacy import Accountant
from fedcore.data.statistics import LEAST_IN_CELL, Column, StatisticsQuery, count_column, pooled, standardised
from fedcore.errors import AppError, ConfigurationError
from tests.support.raising import raises

VALUES = st.floats(-50, 150, width=32) | st.just(math.nan) | st.sampled_from([math.inf, -math.inf])
CLIENTS = st.lists(arrays.arrays(np.float64, st.integers(0, 30), elements=VALUES), min_size=1, max_size=4)


def together(question: StatisticsQuery, *clients: dict[str, Any]) -> dict[str, Column]:
    answers = [question.answer(columns, os.urandom) for columns in clients]
    sums = {name: np.sum([answer[name] for answer in answers], axis=0) for name in answers[0]}
    return {name: question.column(name, place, total) for place, (name, total) in enumerate(sums.items())}


@given(clients=CLIENTS, bins=st.integers(1, 40))
def test_many_clients_answer_what_numpy_says_of_all_rows(clients: list[np.ndarray], bins: int) -> None:
    found = together(StatisticsQuery.of({"age": (0.0, 100.0)}, bins=bins), *({"age": values} for values in clients))[
        "age"
    ]
    everything = np.concatenate(clients)
    present = everything[~np.isnan(everything)]
    inside = np.clip(present, 0, 100)
    assert (found.count, found.missing) == (len(present), len(everything) - len(present))
    assert (found.below, found.above) == (np.sum(present < 0), np.sum(present > 100))
    counts, edges = np.histogram(inside, bins=bins, range=(0, 100))
    assert np.allclose(found.edges, edges)
    assert np.abs(np.cumsum(found.cells) - np.cumsum(counts)).max() <= np.isin(inside, edges).sum()
    if len(present):
        assert found.mean == pytest.approx(inside.mean(), abs=1e-6)
        assert found.variance == pytest.approx(inside.var(), abs=1e-4)
        for q in (0.0, 0.25, 0.5, 0.9, 1.0):
            exact = np.quantile(inside, q, method="inverted_cdf")
            assert abs(found.quantile(q) - exact) <= 100 / bins + 1e-9
    else:
        assert math.isnan(found.mean)
        assert math.isnan(found.quantile(0.5))


def test_a_spread_far_below_the_bounds_is_not_lost() -> None:
    values = np.random.default_rng(0).normal(700.0, 0.05, 1000)
    found = together(StatisticsQuery.of({"t": (0.0, 1000.0)}), {"t": values[:300]}, {"t": values[300:]})["t"]
    assert found.std == pytest.approx(values.std(), rel=1e-3)


def test_cells_at_both_ends_are_the_outer_ones_that_hold_something() -> None:
    found = together(StatisticsQuery.of({"x": (0.0, 10.0)}, bins=5), {"x": [2.5, 7.0]})["x"]
    assert (found.minimum, found.maximum) == ((2.0, 4.0), (6.0, 8.0))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"bounds": {"x": (1.0, 1.0)}}, {"match": r"\bx\b", "numbers": (1, 1)}),
        ({"bounds": {"x": (0.0, math.inf)}}, {"match": r"\bx\b.*inf"}),
        ({"bounds": {}}, {"check": "bounds-count"}),
        ({"bounds": {"x": (0.0, 1.0)}, "bins": 0}, {"numbers": (1, 2048, 0)}),
        ({"bounds": (0.0, 1.0), "epsilon": 1.0, "delta": 1e-5}, {"check": "bounds-needed"}),
        ({"bounds": {"x": (0.0, 1.0)}, "epsilon": -1.0, "delta": 1e-5}, {"match": "epsilon.*delta"}),
        ({"bounds": {"x": (0.0, 1.0)}, "epsilon": 1.0, "delta": 1.0}, {"match": "epsilon.*delta"}),
    ],
)
def test_a_question_without_an_answer_is_refused(asked: dict[str, Any], expected: dict[str, Any]) -> None:
    with raises(ConfigurationError, **expected):
        StatisticsQuery.of(**asked)


def test_a_column_that_is_not_there_or_no_numbers() -> None:
    question = StatisticsQuery.of({"age": (0.0, 100.0)})
    with pytest.raises(AppError, match=r"'age'.*sex"):
        question.answer({"sex": [0, 1]}, os.urandom)
    with raises(AppError, check="not-numbers", match="'age'"):
        question.answer({"age": ["old", "young"]}, os.urandom)


class TestNoise:
    def test_one_record_changes_the_answer_by_no_more_than_the_sensitivity(self) -> None:
        """Of the whole numbers that the noise is added to, with rounding."""
        chance = np.random.default_rng(1)
        question = StatisticsQuery.of({f"x{i}": (-1.0, 1.0) for i in range(20)}, bins=30, epsilon=1.0, delta=1e-5)
        noise = question.noise()
        for _ in range(20):
            rows = chance.uniform(-1.5, 1.5, (50, 20))
            rows[chance.random(rows.shape) < 0.1] = np.nan
            steps = [noise.on_grid(np.concatenate(_counts(question, rows[:end]))) for end in (50, 49)]
            assert int(((steps[0] - steps[1]) ** 2).sum()) <= noise.release.norm_squared

    def test_the_noise_is_as_wide_as_the_budget_asks(self) -> None:
        question = StatisticsQuery.of({"x": (0.0, 1.0)}, bins=1000, epsilon=1.0, delta=1e-5)
        drawn = np.concatenate([question.answer({"x": []}, os.urandom)["x"] for _ in range(4)])
        variance = question.noise().release.variance
        assert np.var(drawn) == pytest.approx(variance, rel=0.15)
        assert abs(np.mean(drawn)) < 5 * math.sqrt(variance / drawn.size)

    def test_two_exchanges_share_one_epsilon(self) -> None:
        question = StatisticsQuery.of({f"x{i}": (0.0, 1.0) for i in range(4)}, bins=8, epsilon=2.0, delta=1e-6)
        parts = [question.only(names, releases=2) for names in (("x0", "x1"), ("x2", "x3"))]
        assert Accountant([part.noise().release for part in parts]).epsilon(1e-6) <= 2.0
        assert Accountant([part.noise().release for part in parts]).epsilon(1e-6) > 1.5

    def test_what_it_says_is_near_the_truth(self) -> None:
        values = np.random.default_rng(2).normal(50, 10, 20_000)
        question = StatisticsQuery.of({"x": (0.0, 100.0)}, bins=20, epsilon=1.0, delta=1e-5)
        found = together(question, {"x": values[:9000]}, {"x": values[9000:]})["x"]
        assert found.count == pytest.approx(20_000, abs=300)
        assert found.mean == pytest.approx(50, abs=1)
        assert found.std == pytest.approx(10, abs=1)
        assert found.quantile(0.5) == pytest.approx(50, abs=2)


def _counts(question: StatisticsQuery, rows: np.ndarray) -> list[np.ndarray]:
    names = enumerate(question.names)
    return [count_column(question, name, rows[:, at], *question.bounds_of(at)) for at, name in names]


class TestStandardised:
    CONFIG: ClassVar = {"statistics-columns": ["x0", "x1"], "statistics-mean": [1.0, 5.0], "statistics-std": [2.0, 0.0]}

    def test_features_lose_mean_and_spread_and_missing_ones_become_the_mean(self) -> None:
        x = np.array([[3.0, 5.0], [np.nan, 5.0]])
        assert standardised(x, self.CONFIG).tolist() == [[1.0, 0.0], [0.0, 0.0]]

    def test_a_column_of_which_nobody_has_a_value_is_0(self) -> None:
        config = {**self.CONFIG, "statistics-mean": [1.0, np.nan], "statistics-std": [2.0, np.nan]}
        assert standardised(np.array([[3.0, 5.0], [1.0, np.nan]]), config).tolist() == [[1.0, 0.0], [0.0, 0.0]]

    def test_before_there_are_statistics_the_answer_is_about_the_values_themselves(self) -> None:
        assert standardised(np.array([[3.0, 5.0]]), {"statistics-bins": 8}).tolist() == [[3.0, 5.0]]

    def test_without_them_it_says_what_to_do(self) -> None:
        with raises(AppError, check="no-statistics"):
            standardised(np.zeros((1, 2)), {"server-round": 1})
        with pytest.raises(AppError, match=r"'age'.*x0"):
            standardised(np.zeros((1, 1)), self.CONFIG, ["age"])


def test_no_cell_holds_one_record() -> None:
    """With 2,048 bins one question gave hundreds of cells with exactly one patient each."""
    values = np.random.default_rng(1).normal(50.0, 10.0, 400)
    question = StatisticsQuery.of({"age": (0.0, 100.0)}, bins=2048)
    column = pooled(question, [{"age": values}]).columns["age"]
    assert sum(cell == 1.0 for cell in column.cells) > 100
    shown = column.coarse()
    groups = [list(group) for _, group in itertools.groupby(shown.cells)]
    assert min(sum(group) for group in groups) >= LEAST_IN_CELL - 1e-9
    assert shown.count == pytest.approx(column.count)
    assert (shown.mean, shown.std) == pytest.approx((column.mean, column.std))
    assert shown.quantile(0.5) == pytest.approx(np.median(values), abs=1.0)


def test_what_is_left_out_and_what_stays() -> None:
    question = StatisticsQuery.of({"age": (0.0, 4.0)}, bins=4)

    def shown(*values: float) -> Column:
        return pooled(question, [{"age": np.array(values)}]).columns["age"].coarse()

    many = shown(*[0.5] * 6, *[1.5] * 7, 2.5, *[3.5] * 5, 9.0, math.nan)
    assert many.cells == (6.0, 7.0, 3.5, 3.5), "one at 2.5, and one outside with the five in the last cell"
    assert (many.above, many.missing, many.below) == (5, 5, 0)
    assert shown(*[0.5] * 6, 3.5).cells == (1.75,) * 4, "what is left at the end joins the ones before it"
    assert shown(*[1.5] * 5, *[3.5] * 5).cells == (0, 5, 0, 5), "these empty cells tell of no value by itself"
    assert shown(*[1.5] * 4, *[3.5] * 5).cells == (2.25,) * 4, "the first would tell where the smallest values lie"
    few = shown(1.5, 2.5, 9.0)
    assert (few.count, few.above, math.isnan(few.mean)) == (0, 0, True)
