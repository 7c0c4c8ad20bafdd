"""A table one over several sites, against pandas and scipy over all rows in one place."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedcore.data import TableColumn, TableSchema
from fedcore.data.reports.report import latex_text
from fedcore.data.reports.table_one import CategoryRow, NumberRow, TableOne, TableOneQuestion
from fedcore.data.statistics import LEAST_IN_CELL, StatisticsQuery, column_values, pooled
from fedcore.errors import AppError, ConfigurationError
from tests.support.raising import raises

SCHEMA = TableSchema(
    target="sick",
    task="binary",
    classes=("no", "yes"),
    columns=(
        TableColumn(name="age", kind="number", low=0, high=100),
        TableColumn(name="smoker", kind="boolean"),
        TableColumn(name="stage", kind="category", categories=("I", "II", "III")),
    ),
)


def people(rows: int, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": draw.normal(60, 12, rows).clip(0, 100),
            "smoker": draw.integers(0, 2, rows).astype(float),
            "stage": draw.choice(["I", "II", "III"], rows),
            "sick": draw.integers(0, 2, rows),
        }
    )
    frame.loc[draw.random(rows) < 0.2, "age"] = np.nan
    frame.loc[draw.random(rows) < 0.2, "smoker"] = np.nan
    return frame


def columns(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    stages = {f"stage={one}": (frame["stage"] == one).to_numpy(float) for one in ("I", "II", "III")}
    return {
        **{name: frame[name].to_numpy(float) for name in ("age", "smoker")},
        **stages,
        "y": frame["sick"].to_numpy(),
    }


def table(frame: pd.DataFrame, by: str, sites: int = 3) -> TableOne:
    """Of sites that each have some of the rows, as the server hands it out."""
    question = TableOneQuestion(schema=SCHEMA, by=by)
    parts = [columns(frame.iloc[site::sites]) for site in range(sites)]
    return TableOne.of(question, pooled(StatisticsQuery.of(question.bounds()), parts).coarse())


@pytest.mark.parametrize(("by", "column"), [("stage", "stage"), ("sick", "sick"), ("smoker", "smoker")])
def test_numbers_and_tests_are_those_of_all_rows(by: str, column: str) -> None:
    frame = people(400)
    made = table(frame, by)
    inside = frame[frame[column].notna()]
    groups = [inside, *(group for _, group in frame.groupby(column))]
    assert made.left_out == len(frame) - len(inside)
    assert made.rows == tuple(map(len, groups))
    rows = {row.name: row for row in made.columns}
    assert by not in rows
    age = rows["age"]
    assert isinstance(age, NumberRow)
    assert age.mean == pytest.approx([group["age"].mean() for group in groups], abs=1e-4)
    assert age.std == pytest.approx([group["age"].std() for group in groups], abs=1e-4)
    assert age.missing == tuple(int(group["age"].isna().sum()) for group in groups)
    samples = [group["age"].dropna() for group in groups[1:]]
    p = stats.ttest_ind(*samples, equal_var=False).pvalue if len(samples) == 2 else stats.f_oneway(*samples).pvalue
    assert age.p == pytest.approx(p, rel=1e-3)
    assert [quartiles[1] for quartiles in age.quartiles] == pytest.approx(
        [group["age"].median() for group in groups], abs=100 / 64
    )
    for name in {"smoker", "stage", "sick"} - {by}:
        row = rows[name]
        assert isinstance(row, CategoryRow)
        expected = pd.crosstab(frame[name], frame[column])
        assert np.array(row.counts)[:, 1:].tolist() == expected.to_numpy().tolist()
        assert np.array(row.counts)[:, 0].tolist() == inside[name].value_counts().sort_index().tolist()
        assert row.p == pytest.approx(stats.chi2_contingency(expected, correction=False).pvalue)


@given(
    st.lists(st.tuples(st.sampled_from(["I", "II", "III"]), st.sampled_from([0, 1])), min_size=1, max_size=60),
)
def test_no_number_of_few_rows_is_shown_or_follows(rows: list[tuple[str, int]]) -> None:
    """Of each value and group: shown numbers and their sums leave no small number alone."""
    frame = people(len(rows)).assign(stage=[stage for stage, _ in rows], sick=[sick for _, sick in rows])
    made = next(row for row in table(frame, "sick").columns if row.name == "stage")
    assert isinstance(made, CategoryRow)
    shown = np.array(made.counts)
    assert not ((shown > 0) & (shown < LEAST_IN_CELL)).any()
    truth = pd.crosstab(frame["stage"], frame["sick"]).reindex(index=["I", "II", "III"], columns=[0, 1]).fillna(0)
    truth = truth.to_numpy()
    for group in (0, 1):
        if truth[:, group].sum() >= LEAST_IN_CELL and ((truth[:, group] > 0) & (truth[:, group] < LEAST_IN_CELL)).any():
            hidden = np.isnan(shown[:, group + 1])
            assert hidden.sum() >= 2 or (truth[~hidden, group] == 0).all()
            assert math.isnan(made.p)


@given(st.data())
def test_overall_less_the_groups_tells_nothing(data: st.DataObject) -> None:
    """Neither rows without a group nor groups of few rows are in it, and each small number may be one of several."""
    rows = data.draw(st.integers(20, 60))
    frame = people(rows, seed=data.draw(st.integers(0, 999)))
    frame["smoker"] = 0.0
    frame.loc[frame.index[: data.draw(st.integers(0, 9))], "smoker"] = 1.0
    frame.loc[frame.index[rows - data.draw(st.integers(0, 7)) :], "smoker"] = np.nan
    made = table(frame, "smoker")
    assert made.rows[0] == sum(made.rows[1:])
    for row in made.columns:
        if isinstance(row, CategoryRow):
            numbers = np.array([*row.counts, row.missing])
            visible = ~np.isnan(numbers).any(axis=1)
            assert (numbers[visible, 0] == numbers[visible, 1:].sum(axis=1)).all()
            assert (np.isnan(numbers).sum(axis=1) != 1).all()


def test_without_groups_it_is_of_all_rows() -> None:
    made = table(people(100), "")
    assert made.groups == ("overall",)
    assert {len(line) for line in csv.reader(io.StringIO(made.csv()))} == {2}


def test_the_forms_have_the_same_lines() -> None:
    made = table(people(200), "stage")
    lines = list(csv.reader(io.StringIO(made.csv())))
    latex = latex_text(made.lines())
    assert latex.count(r"\\") == len(lines)
    assert latex.count("&") == sum(len(line) - 1 for line in lines)
    plain: dict[str, Any] = made.document()
    assert list(plain["columns"]) == ["age", "smoker", "sick"]
    assert plain["columns"]["age"]["mean"] == list(made.columns[0].mean)  # type: ignore[union-attr]


def test_a_column_of_numbers_makes_no_groups() -> None:
    with raises(ConfigurationError, check="no-groups", match="stage"):
        TableOneQuestion(schema=SCHEMA, by="age")


def test_a_condition_chooses_rows() -> None:
    some = {"age": [1.0, 2.0, np.nan], "ward": [3.0, 4.0, 3.0], "sex=male": [1.0, 0.0, 1.0], "a | b": [7.0]}
    assert np.array_equal(np.asarray(column_values(some, "age | ward=3")), [1.0, np.nan], equal_nan=True)
    assert np.asarray(column_values(some, "age | sex=male")).size == 2
    assert np.asarray(column_values(some, "ward=4")).tolist() == [False, True, False]
    assert column_values(some, "a | b") == [7.0]
    for name in ("age | bed=1", "age | ward=wide", "bed"):
        with raises(AppError, check="no-such-column"):
            column_values(some, name)
    with raises(AppError, check="other-rows"):
        column_values({**some, "bed": [1.0]}, "age | bed")
