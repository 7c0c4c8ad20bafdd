"""Answers about columns as files: every kind of answer in every form."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from fedcore.data.correlation.matrix import Correlations
from fedcore.data.regression.newton import Regression
from fedcore.data.reports.chi_squared import ChiSquared
from fedcore.data.reports.correlation_report import CorrelationReport
from fedcore.data.reports.crosstab import Crosstab
from fedcore.data.reports.regression_report import RegressionReport
from fedcore.data.reports.report import REPORT_ENDINGS, ColumnsReport, latex_text, report_frame, save_report
from fedcore.data.reports.statistics_report import StatisticsReport
from fedcore.data.reports.table_one import CategoryRow, NumberRow, TableOne
from fedcore.data.statistics import Column, Statistics

BEGINNINGS = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF", ".tex": rb"\begin{tabular}", ".json": b"{"}


def statistics() -> StatisticsReport:
    column = Column(
        name="age", low=0.0, high=4.0, missing=1.0, below=0.0, above=0.0, first=0.0, second=3.0,
        cells=(5.0, 6.0, 7.0, 8.0),
    )  # fmt: skip
    columns = {f"column_{number}": column for number in range(6)}
    return StatisticsReport(Statistics(clients=2, asked=3, epsilon=0.0, delta=1e-5, columns=columns), (0.5,))


def table_one() -> TableOne:
    number = NumberRow(
        name="age", count=(9.0, 5.0, 4.0), missing=(0.0, 0.0, 0.0), mean=(3.0, 4.0, 2.0), std=(1.0, 1.0, float("nan")),
        quartiles=((1.0, 2.0, 3.0),) * 3, difference=2.0, p=0.01,
    )  # fmt: skip
    category = CategoryRow(
        name="stage", values=("I", "II"), counts=((5.0, float("nan"), 3.0), (4.0, 2.0, float("nan"))),
        missing=(0.0, 0.0, 0.0), total=(9.0, 5.0, 4.0), p=float("nan"), few=True,
    )  # fmt: skip
    return TableOne(
        groups=("all", "sex = f", "sex = m"), rows=(9.0, 5.0, 4.0), columns=(number, category), clients=3, cohort=3,
        left_out=0.0,
    )  # fmt: skip


def regression() -> RegressionReport:
    return RegressionReport(
        Regression(
            family="linear", target="y", terms=("Intercept", "a:b"), coefficients=(1.0, 2.0), errors=(0.1, 0.2),
            rows=40, missing=0, clients=3, nodes=3, log_likelihood=-3.0, deviance=2.0, dispersion=0.1,
            queries=3,
        )
    )  # fmt: skip


def crosstab() -> Crosstab:
    counts = np.array([[9.0, np.nan, np.nan], [6.0, np.nan, np.nan], [15.0, 9.0, 24.0]])
    return Crosstab(
        down="stage", across="sex", values=("I", "II"), groups=("f", "m"), counts=counts, left_out=5.0,
        test=ChiSquared(), rough=0, fisher=float("nan"), clients=3, cohort=3,
    )  # fmt: skip


def correlations() -> CorrelationReport:
    return CorrelationReport(
        Correlations(names=("age", "dose", "x_1"), rows=(30, 20, None), r=(0.5, None, None), clients=3, nodes=3)
    )


@pytest.mark.parametrize("ending", REPORT_ENDINGS)
@pytest.mark.parametrize("make", [statistics, table_one, regression, crosstab, correlations])
def test_an_answer_is_saved_as_its_ending_says(make: type[ColumnsReport], ending: str, tmp_path: Path) -> None:
    first, second = tmp_path / f"first{ending}", tmp_path / f"second{ending}"
    save_report(make(), first)
    save_report(make(), second)
    text = first.read_bytes()
    assert text.startswith(BEGINNINGS.get(ending, b""))
    assert ending == ".svg" or text == second.read_bytes()
    if ending == ".json":
        assert b"NaN" not in text
        assert json.loads(text)["clients"] in (2, 3)


def test_latex_prints_its_own_signs_and_keeps_the_indent() -> None:
    made = latex_text([["", "a & b", "P>|t|"], ["  x_1 50%", "y", "<0.001"]])
    assert made.count(" & ") == 4
    for sign in (r"\&", r"\_", r"\%", r"\textless{}", r"\textgreater{}", r"\quad x"):
        assert made.count(sign) == 1


@pytest.mark.parametrize(
    ("make", "first"),
    [(statistics, "column"), (table_one, ""), (regression, "term"), (crosstab, "stage"), (correlations, "column")],
)
def test_the_frame_of_an_answer_has_its_lines_by_the_first_column(make: type[ColumnsReport], first: str) -> None:
    report = make()
    frame = report_frame(report)
    assert frame.index.name == first
    assert len(frame) == len(list(csv.reader(io.StringIO(report.csv())))) - 1


def test_a_frame_has_all_digits() -> None:
    report = correlations()
    assert report_frame(report)["low"].tolist()[:1] == [report.correlations.intervals()[0][0]]
