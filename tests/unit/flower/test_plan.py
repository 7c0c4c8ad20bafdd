"""Study plans: what they cover, and what they refuse to be."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedcore.data.correlation.question import CorrelationQuery
from fedcore.data.correlation.resolve import correlation_query
from fedcore.data.regression.newton import MOST_QUERIES
from fedcore.data.regression.question import RegressionQuery
from fedcore.data.regression.resolve import regression_query
from fedcore.data.regression.step import RegressionStep
from fedcore.data.statistics import StatisticsQuery
from fedcore.data.survival.cox import CoxStep
from fedcore.data.survival.question import CountStep, SurvivalQuery
from fedcore.data.survival.times import TimeGroups
from fedcore.errors import FedcoreError
from fedcore.flower.app import FlowerApp
from fedcore.flower.apps.statistics import statistics_config
from fedcore.flower.columns.plan import StudyPlan
from fedcore.flower.regression import step_config
from tests.support.raising import raises

COLUMNS = Path(__file__).parents[2] / "apps" / "columns"
BOUNDS = {"age": (0.0, 100.0), "dose": (-1.0, 1.0)}
FORMULA = "dose ~ age"
PLAN = """
[[question]]
name = "columns"
columns = true
runs = 2

[[question]]
name = "model"
glm = "dose ~ age"
family = "linear"
"""
STATISTICS, REGRESSION = "query.statistics", "query.regression"


def planned(folder: Path, plan: str) -> StudyPlan:
    app = shutil.copytree(COLUMNS, folder / "app", ignore=shutil.ignore_patterns("__pycache__"))
    project = app / "pyproject.toml"
    text = project.read_text()
    assert "[tool.fedcore.statistics]" in text
    project.write_text(text.replace("[tool.fedcore.statistics]", '[tool.fedcore.statistics]\nplan = "plan.toml"'))
    (app / "plan.toml").write_text(plan)
    made = StudyPlan.of(FlowerApp.load(app))
    assert made is not None
    return made


def names(plan: StudyPlan, message_type: str, config: Mapping[str, Any]) -> list[str]:
    return [question.name for question in plan.find(message_type, config)]


def asked(bounds: dict[str, tuple[float, float]] = BOUNDS, **changes: Any) -> dict[str, Any]:
    return dict(statistics_config(StatisticsQuery.of(bounds, **changes)))


def step(formula: str) -> dict[str, Any]:
    query = regression_query(formula, family="linear", bounds=BOUNDS)
    zeros, ones = (0.0,) * query.size, (1.0,) * query.size
    return dict(step_config(RegressionStep(query=query, center=zeros, scale=ones, coefficients=zeros)))


def test_a_plan_covers_its_questions_and_parts_of_them(tmp_path: Path) -> None:
    plan = planned(tmp_path, PLAN)
    assert names(plan, STATISTICS, asked()) == ["columns"]
    assert names(plan, STATISTICS, asked({"age": BOUNDS["age"]}, bins=8)) == ["columns"]
    assert names(plan, REGRESSION, step(FORMULA)) == ["model"]
    assert plan.queries >= MOST_QUERIES + 2 * len(BOUNDS)


@pytest.mark.parametrize(
    ("message_type", "config"),
    [
        (STATISTICS, asked(bins=512)),
        (STATISTICS, asked({"age": (60.0, 61.0)})),
        (STATISTICS, asked({"age": BOUNDS["age"], "dose | age=4": BOUNDS["dose"]})),
        (STATISTICS, asked(all_rows=True)),
        (STATISTICS, {}),
        (REGRESSION, step("dose ~ age + I(age ** 2)")),
        (REGRESSION, {"statistics-regression": "{"}),
        ("query.other", asked()),
        ("query.tree_sums", {}),
    ],
)
def test_nothing_else_is_covered(message_type: str, config: dict[str, Any], tmp_path: Path) -> None:
    assert names(planned(tmp_path, PLAN), message_type, config) == []


@pytest.mark.parametrize(
    ("line", "other"),
    [('correlations = "age dose"', CorrelationQuery), ('glm = "dose ~ age"\nfamily = "linear"', RegressionQuery)],
)
def test_a_question_of_steps_covers_its_own(line: str, other: type[Any], tmp_path: Path) -> None:
    plan = planned(tmp_path, f'[[question]]\nname = "x"\n{line}')
    (question,) = plan.questions
    assert isinstance(question.question, other)
    correlations = correlation_query(("age", "dose"), bounds=BOUNDS)
    steps = {CorrelationQuery: dict(step_config(correlations)), RegressionQuery: step(FORMULA)}
    assert {kind for kind, config in steps.items() if question.covers(REGRESSION, config)} == {other}


def test_trees_ask_by_their_own_types_and_for_fine_histograms(tmp_path: Path) -> None:
    plan = planned(tmp_path, '[[question]]\nname = "trees"\ntrees = true\nqueries = 90\nruns = 2')
    assert plan.queries == 180
    assert names(plan, "query.tree_sums", {}) == names(plan, STATISTICS, asked(bins=1000)) == ["trees"]


@pytest.mark.parametrize(
    ("plan", "check"),
    [
        ("", "no-questions"),
        ("[[question]]\ncolumns = true", "question-name"),
        ('[[question]]\nname = "../x"\ncolumns = true', "question-name"),
        ('[[question]]\nname = "x"', "one-kind"),
        ('[[question]]\nname = "x"\ncolumns = true\nglm = "dose ~ age"', "one-kind"),
        ('[[question]]\nname = "x"\ncolumns = true\n[[question]]\nname = "x"\ncolumns = true', "same-name"),
        ('[[question]]\nname = "x"\nby = "age"', "no-schema"),
        ('[[question]]\nname = "x"\nglm = "dose ~ age"\nfamily = "gamma"', "family"),
    ],
)
def test_what_is_no_plan_is_refused(plan: str, check: str, tmp_path: Path) -> None:
    with raises(FedcoreError, check=check):
        planned(tmp_path, plan)


@pytest.mark.parametrize(
    ("line", "word"),
    [("column = true", "column"), ("runs = 0", "runs"), ("queries = 4", "trees"), ("columns = false", "columns")],
)
def test_wrong_lines_are_named(line: str, word: str, tmp_path: Path) -> None:
    lines = ['[[question]]\nname = "x"', line] + ["columns = true"] * ("columns" not in line)
    with pytest.raises(FedcoreError, match=word):
        planned(tmp_path, "\n".join(lines))


SURVIVAL_PLAN = """
[[question]]
name = "curves"
survival = "age died"
groups = "C(ward, [0, 1])"

[[question]]
name = "hazards"
glm = "Surv(age, died) ~ dose"
"""


def test_survival_curves_and_cox_regressions_cover_their_steps_alone(tmp_path: Path) -> None:
    plan = planned(tmp_path, SURVIVAL_PLAN)
    curves, hazards = (one.question for one in plan.questions)
    assert isinstance(curves, SurvivalQuery)
    assert isinstance(hazards, RegressionQuery)
    numbers = {"center": (0.0, 0.0), "scale": (1.0, 1.0), "coefficients": (0.0, 0.0)}
    step = RegressionStep(query=hazards, **numbers, profile=True)
    groups = (TimeGroups(ends=(3,), limits=(-1,)),)
    of_curves, of_hazards = CountStep.all_of(curves.times)[0], CountStep.all_of(hazards.times, hazards)[0]
    steps = [step, CoxStep(step=step, groups=groups, first=0, last=6, bits=3), of_hazards]
    for one in steps:
        assert [found.name for found in plan.find(REGRESSION, step_config(one))] == ["hazards"]
    assert [found.name for found in plan.find(REGRESSION, step_config(of_curves))] == ["curves"]
    other = CountStep.all_of(curves.times, hazards)[0]  # a regression's rows, counted on another grid
    assert not list(plan.find(REGRESSION, step_config(other)))
