"""Correlations over several sites, against pandas and scipy over all rows in one place."""

from __future__ import annotations

import csv
import io
import itertools
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedcore.data import TableColumn, TableSchema
from fedcore.data.correlation.matrix import Correlations
from fedcore.data.correlation.question import MOST_COLUMNS, CorrelationQuery
from fedcore.data.correlation.resolve import correlation_query
from fedcore.data.questions import answer_from_plain, answer_to_plain, question_from_plain, question_to_plain
from fedcore.data.reports.correlation_report import CorrelationReport
from fedcore.errors import AppError, ConfigurationError, PeerError
from tests.support.raising import raises

SCHEMA = TableSchema(
    target="cost",
    task="regression",
    target_low=0,
    target_high=10_000,
    target_unit=1_000,
    columns=(
        TableColumn(name="age", kind="number", low=0, high=100),
        TableColumn(name="dose", kind="number", low=0, high=1000),
        TableColumn(name="smoker", kind="boolean"),
        TableColumn(name="sex", kind="category", categories=("f", "m")),
    ),
)
NAMES = ("age", "dose", "lvef", "constant", "none")
BOUNDS = {"age": (0.0, 100.0), "dose": (0.0, 1000.0), "lvef": (0.0, 100.0), "constant": (0.0, 10.0), "none": (0.0, 1.0)}


def people(rows: int, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    age = draw.normal(60, 12, rows)
    frame = pd.DataFrame(
        {
            "age": age,
            "dose": draw.exponential(2.0, rows) + age / 50,  # far below its bounds
            "lvef": 55 - age / 4 + draw.normal(0, 6, rows),
            "constant": 7.3,
            "none": np.nan,
        }
    ).sort_values("age")
    for name, share in {"age": 0.1, "dose": 0.05, "lvef": 0.4}.items():
        frame.loc[draw.random(rows) < share, name] = np.nan
    return frame


def ask(frame: pd.DataFrame, query: CorrelationQuery) -> Correlations:
    """Over three sites, of which the last one has the oldest people, and most of the rows."""
    ends = [0, len(frame) // 10, len(frame) // 3, len(frame)]
    answers = [query.answer(_part(frame, a, b)) for a, b in itertools.pairwise(ends)]
    fixed = np.floor(np.array(answers) * 256) / 256  # as in a secure sum
    return query.correlations(fixed.sum(axis=0).tolist(), clients=3, nodes=3)


def _part(frame: pd.DataFrame, first: int, last: int) -> dict[str, np.ndarray]:
    return {str(name): frame[name].to_numpy()[first:last] for name in frame}


def test_is_that_of_all_rows() -> None:
    frame = people(900)
    found = ask(frame, correlation_query(NAMES, bounds=BOUNDS))
    expected = frame.corr().to_numpy()
    some = found.matrix(found.r)[:3, :3]
    assert some[np.triu_indices(3, 1)] == pytest.approx(expected[:3, :3][np.triu_indices(3, 1)], abs=1e-9)
    assert (found.clients, found.nodes) == (3, 3)
    pairs = list(itertools.combinations(NAMES, 2))
    for pair, rows, r, p, (low, high) in zip(
        pairs, found.rows, found.r, found.p_values, found.intervals(), strict=True
    ):
        both = frame[list(pair)].dropna()
        assert rows == len(both)
        if set(pair) & {"constant", "none"}:
            assert r is None
            assert np.isnan([p, low, high]).all()
            continue
        test = stats.pearsonr(*both.to_numpy().T)
        interval = test.confidence_interval()
        assert (r, low, high) == pytest.approx((test.statistic, interval.low, interval.high), abs=1e-9)
        assert p == pytest.approx(test.pvalue, rel=1e-6)


def test_values_beyond_the_bounds_are_not_cut_off() -> None:
    frame = people(300)
    narrow = dict.fromkeys(("age", "lvef"), (40.0, 50.0))
    found = ask(frame, correlation_query(("age", "lvef"), bounds=narrow))
    assert found.r[0] == pytest.approx(frame["age"].corr(frame["lvef"]), abs=1e-9)


def test_values_that_are_far_out_end_it_with_an_error() -> None:
    with raises(ConfigurationError, check="bounds-too-narrow"):
        ask(people(300) * 1e9, correlation_query(("age", "lvef"), bounds=(0.0, 1.0)))


@pytest.mark.parametrize("rows", [1, 4, 5])
def test_nothing_is_shown_of_fewer_than_five_rows(rows: int) -> None:
    frame = people(200)[["age", "lvef"]].dropna()
    frame.loc[frame.index[rows:], "age"] = np.nan
    found = ask(frame, correlation_query(("age", "lvef"), bounds=BOUNDS))
    assert (found.rows, found.r[0] is not None) == (((5,), True) if rows == 5 else ((None,), False))


@pytest.mark.parametrize("rows", [1, 4, 5])
@pytest.mark.parametrize("most", [0.0, 1.0])
def test_a_number_that_few_rows_have_tells_nothing_of_these(rows: int, most: float) -> None:
    frame = people(100)[["age"]].dropna().assign(marker=most)
    frame.loc[frame.index[:rows], "marker"] = 1.0 - most
    found = ask(frame, correlation_query(("age", "marker"), bounds=(0.0, 100.0)))
    assert (found.r[0] is not None) == (rows >= 5)


def test_two_columns_of_0_and_1_tell_of_no_small_cell() -> None:
    cells = {(0, 0): 30, (0, 1): 20, (1, 0): 10, (1, 1): 3}
    rows = [pair for pair, count in cells.items() for _ in range(count)]
    frame = pd.DataFrame(rows, columns=["a", "b"], dtype=float)
    query = correlation_query(("a", "b"), bounds=(-1.0, 2.0))
    assert ask(frame, query).r == (None,)
    more = pd.concat([frame, pd.DataFrame([(1.0, 1.0)] * 2, columns=["a", "b"])])
    assert ask(more, query).r[0] == pytest.approx(more["a"].corr(more["b"]), abs=1e-9)


@pytest.mark.parametrize(
    ("names", "known", "check"),
    [
        (("age", "hight"), {"schema": SCHEMA}, "no-such-column"),
        (("age", "sex"), {"schema": SCHEMA}, "no-number"),
        (("age", "smoker"), {"schema": SCHEMA}, "no-number"),
        (("age", "age"), {"schema": SCHEMA}, "same-column"),
        (("age",), {"schema": SCHEMA}, "columns-count"),
        (("age", "dose"), {}, "no-bounds"),
        (("age", "dose"), {"bounds": {"age": (0.0, 1.0)}}, "no-bounds"),
        (("all",), {}, "no-bounds"),
        (("all",), {"bounds": {f"x{at}": (0.0, 1.0) for at in range(MOST_COLUMNS + 1)}}, "columns-count"),
    ],
)
def test_columns_without_correlations(names: tuple[str, ...], known: dict[str, Any], check: str) -> None:
    with raises(ConfigurationError, check=check):
        correlation_query(names, **known)


def test_all_are_the_numbers_of_the_schema() -> None:
    query = correlation_query(("all",), schema=SCHEMA)
    assert (query.names, query.columns) == (("age", "dose", "cost"), ("age", "dose", "y"))
    assert query.high == (100.0, 1000.0, 10.0)


def test_sites_without_such_columns() -> None:
    query = correlation_query(("age", "dose"), bounds=BOUNDS)
    with raises(AppError, check="no-such-column"):
        query.answer({"age": [1.0]})
    with raises(AppError, check="not-numbers"):
        query.answer({"age": ["old"], "dose": [1.0]})
    with raises(AppError, check="uneven-columns"):
        query.answer({"age": [1.0, 2.0], "dose": [1.0]})


def test_question_and_answer_travel_as_json() -> None:
    query = correlation_query(NAMES, bounds=BOUNDS)
    plain = json.loads(json.dumps(question_to_plain(query), allow_nan=False))
    assert question_from_plain(plain) == query
    found = ask(people(300), query)
    text = json.dumps(answer_to_plain(query, found), allow_nan=False)
    assert answer_from_plain(query, json.loads(text), error=PeerError) == found


def test_the_forms_agree() -> None:
    found = ask(people(300), correlation_query(NAMES, bounds=BOUNDS))
    report = CorrelationReport(found)
    lines = list(csv.DictReader(io.StringIO(report.csv())))
    assert len(lines) == len(report.lines()) - 1 == 10
    assert float(lines[0]["r"]) == found.r[0]
    assert lines[3]["r"] == ""
    document = json.loads(json.dumps(report.document(), allow_nan=False))
    assert document["r"][0][:2] == [1.0, found.r[0]]
    assert document["r"][1][0] == found.r[0]
