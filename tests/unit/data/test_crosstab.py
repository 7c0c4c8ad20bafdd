"""A contingency table over several sites, against pandas and scipy over all rows in one place."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from fedcore.data import TableColumn, TableSchema
from fedcore.data.reports.crosstab import Crosstab, CrosstabQuestion
from fedcore.data.reports.small_numbers import hidden_in_table, with_totals
from fedcore.data.statistics import LEAST_IN_CELL, pooled
from fedcore.errors import ConfigurationError
from tests.support.raising import raises

STAGES = ("I", "II", "III", "IV")
SCHEMA = TableSchema(
    target="outcome",
    task="classes",
    classes=("well", "ill", "dead"),
    columns=(
        TableColumn(name="age", kind="number", low=0, high=100),
        TableColumn(name="smoker", kind="boolean"),
        TableColumn(name="stage", kind="category", categories=STAGES),
        TableColumn(name="ward of entry", kind="category", categories=("a", "b")),
    ),
)


def people(rows: int, seed: int = 0) -> pd.DataFrame:
    """No row has stage IV; the later rows, of the last site, are more often sick."""
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "smoker": draw.integers(0, 2, rows).astype(float),
            "stage": draw.choice(["I", "II", "III"], rows, p=[0.5, 0.3, 0.2]),
            "ward of entry": draw.choice(["a", "b"], rows),
            "outcome": np.minimum(draw.integers(0, 3, rows) + (np.arange(rows) > rows * 0.7), 2),
        }
    )
    for name in ("smoker", "stage", "ward of entry"):
        frame.loc[draw.random(rows) < 0.1, name] = np.nan
    return frame


def columns(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    levels = {"stage": STAGES, "ward of entry": ("a", "b")}
    hot = {f"{name}={level}": (frame[name] == level).to_numpy(float) for name, some in levels.items() for level in some}
    return {"smoker": frame["smoker"].to_numpy(float), **hot, "y": frame["outcome"].to_numpy()}


def crosstab(frame: pd.DataFrame, down: str, across: str) -> Crosstab:
    """Of three sites, the last with the last rows, as the server hands it out."""
    question = CrosstabQuestion.of(SCHEMA, (down, across))
    ends = [0, len(frame) // 10, len(frame) // 2, len(frame)]
    parts = [columns(frame.iloc[a:b]) for a, b in itertools.pairwise(ends)]
    return Crosstab.of(question, pooled(question.query(), parts).coarse())


@pytest.mark.parametrize(("down", "across"), list(itertools.permutations(["smoker", "stage", "outcome"], 2)))
def test_is_that_of_all_rows(down: str, across: str) -> None:
    frame = people(500)
    made = crosstab(frame, down, across)
    expected = pd.crosstab(frame[down], frame[across])
    counts = made.counts[:-1, :-1]
    assert counts[counts.sum(axis=1) > 0][:, counts.sum(axis=0) > 0].tolist() == expected.to_numpy().tolist()
    assert made.counts[-1, -1] == expected.to_numpy().sum() == len(frame) - made.left_out
    assert made.counts[:-1, -1].tolist() == counts.sum(axis=1).tolist()
    test = stats.chi2_contingency(expected, correction=False)
    assert (made.test.statistic, made.test.p) == pytest.approx((test.statistic, test.pvalue), rel=1e-12)
    assert made.test.degrees == test.dof
    assert made.cramers_v == pytest.approx(stats.contingency.association(expected, method="cramer"))
    assert made.shares(0)[0, 0] == pytest.approx(counts[0, 0] / counts[:, 0].sum())
    assert made.shares(1)[0, 0] == pytest.approx(counts[0, 0] / counts[0].sum())


def test_a_level_that_no_site_has_is_shown_as_such() -> None:
    made = crosstab(people(500), "stage", "smoker")
    assert made.values == STAGES
    assert made.counts[3].tolist() == [0, 0, 0]
    assert made.lines()[4] == ["IV", "0 (0.0%)", "0 (0.0%)", "0 (0.0%)"]


def test_fishers_test_is_of_two_by_two_with_few_rows_expected() -> None:
    frame = pd.DataFrame({"smoker": [0.0] * 14 + [1.0] * 6, "stage": "I", "ward of entry": ["a"] * 14 + ["b"] * 6})
    made = crosstab(frame.assign(outcome=0), "smoker", "ward of entry")
    expected = stats.fisher_exact([[14, 0], [0, 6]]).pvalue
    assert (made.rough, made.fisher) == (3, pytest.approx(expected))
    many = crosstab(people(500), "smoker", "ward of entry")
    assert (many.rough, math.isnan(many.fisher)) == (0, True)


def test_nothing_tells_of_a_small_number() -> None:
    frame = people(500)
    rare = frame["stage"] == "III"
    frame.loc[frame.index[rare][3:], "stage"] = "I"
    made = crosstab(frame, "stage", "smoker")
    assert np.isnan(made.counts[2]).sum() >= 2
    assert math.isnan(made.test.p)
    assert math.isnan(made.cramers_v)
    few = crosstab(frame.iloc[:4], "stage", "smoker")
    assert np.isnan(few.counts).all()


@pytest.mark.parametrize("rows", [1, 4])
def test_a_column_of_few_rows_is_not_shown_as_empty(rows: int) -> None:
    frame = people(500)
    rare = frame["stage"] == "III"
    frame.loc[frame.index[rare][rows:], "stage"] = "I"
    made = crosstab(frame, "outcome", "stage")
    assert np.isnan(made.counts[:, 2]).all()
    assert made.counts[-1].tolist()[3] == 0, "stage IV, which nobody has"
    assert math.isnan(made.test.p)
    assert made.counts[-1, -1] == (frame["stage"].notna() & (frame["stage"] != "III")).sum()


def test_few_rows_without_a_value_are_not_told_apart() -> None:
    frame = people(300).assign(smoker=1.0, stage="I")
    frame.loc[:1, "smoker"] = np.nan
    assert crosstab(frame, "smoker", "outcome").left_out == LEAST_IN_CELL


@settings(deadline=None)
@given(
    arrays.arrays(
        np.float64, st.tuples(st.integers(2, 4), st.integers(2, 4)), elements=st.sampled_from([0, 1, 3, 4, 6, 9, 40])
    )
)
def test_each_small_number_has_several_possible_values(counts: np.ndarray) -> None:
    """Another table has the same shown numbers if hidden ones of alternating lines and columns lead back to it."""
    hidden, full = hidden_in_table(counts), with_totals(counts)
    assert hidden[(full > 0) & (full < LEAST_IN_CELL)].all()
    if full[-1, -1] < LEAST_IN_CELL:
        assert hidden.all()
        return
    edges = {(f"line {a}", f"column {b}") for a, b in np.argwhere(hidden & (full > 0))}
    for i, j in np.argwhere((counts > 0) & (counts < LEAST_IN_CELL)):
        start, end = f"line {i}", f"column {j}"
        others = edges - {(start, end)}
        reach = {start}
        while more := {one for edge in others for one in edge if reach & set(edge)} - reach:
            reach |= more
        assert end in reach, (counts, hidden)


@pytest.mark.parametrize(
    ("names", "check"),
    [
        (("stage", "sex"), "no-such-column"),
        (("stage", "stage"), "same-column"),
        (("age", "stage"), "no-groups"),
        (("stage", "age"), "no-groups"),
        (("stage",), "two-columns"),
        (("stage", "smoker", "outcome"), "two-columns"),
    ],
)
def test_columns_that_make_no_table(names: tuple[str, ...], check: str) -> None:
    with raises(ConfigurationError, check=check):
        CrosstabQuestion.of(SCHEMA, names)


def test_the_forms_agree() -> None:
    made = crosstab(people(60), "stage", "outcome")
    lines = list(csv.reader(io.StringIO(made.csv())))
    assert len(lines) == 1 + 5 * 4
    document = json.loads(json.dumps(made.document(), allow_nan=False))
    assert document["lines"]["values"] == list(STAGES)
    assert [len(line) for line in document["counts"]] == [3] * 4
    assert sum(cell == "" for line in lines for cell in line[2:3]) == np.isnan(made.counts).sum()


def test_a_large_table_of_small_numbers_is_a_matter_of_seconds() -> None:
    """A linear program for each of its numbers would take minutes."""
    counts = np.random.default_rng(0).poisson(4, (60, 8)).astype(float)
    hidden = hidden_in_table(counts)
    assert hidden[:-1, :-1][(counts > 0) & (counts < LEAST_IN_CELL)].all()
    assert not hidden.all()
