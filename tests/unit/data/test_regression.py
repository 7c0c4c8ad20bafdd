"""Regressions by sums: what several clients answer together is what statsmodels says of all their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.later import Later
from support.raising import raises

from fedcore.data.questions import question_from_plain, question_to_plain
from fedcore.data.regression.newton import Regression, fit
from fedcore.data.regression.question import MOST_VALUES, RegressionQuery
from fedcore.data.regression.resolve import regression_query
from fedcore.data.regression.step import RegressionStep, Sums
from fedcore.data.reports.regression_report import RegressionReport
from fedcore.data.statistics import StatisticsQuery
from fedcore.errors import AppError, ConfigurationError, RoundFailed

sm = Later("statsmodels.api")
formulas = Later("statsmodels.formula.api")

Table = dict[str, np.ndarray]
BOUNDS = {"age": (0.0, 120.0), "bmi": (10.0, 60.0), "cost": (0.0, 20_000.0), "dose": (0.0, 1.0)}
FAMILIES = {"logistic": "Binomial", "poisson": "Poisson", "linear": "Gaussian"}
TARGETS = {"logistic": "sick", "poisson": "stays", "linear": "cost"}
WORD = 2.0**8
"""A sum has at least 8 bits after the point."""


def table(rows: int = 600, seed: int = 0) -> Table:
    chance = np.random.default_rng(seed)
    found = {
        "age": chance.normal(60, 12, rows),
        "bmi": chance.normal(27, 4, rows),
        "sex": chance.integers(0, 2, rows).astype(float),
        "ward": chance.integers(0, 4, rows).astype(float),
    }
    eta = -3 + 0.04 * found["age"] + 0.02 * found["bmi"] - 0.5 * found["sex"] + 0.3 * (found["ward"] == 2)
    found["sick"] = (chance.random(rows) < 1 / (1 + np.exp(-eta))).astype(float)
    found["stays"] = chance.poisson(np.exp(0.02 * found["age"] + 0.3 * found["sex"])).astype(float)
    found["cost"] = 1000 + 30 * found["age"] - 100 * found["sex"] + chance.normal(0, 300, rows)
    return found


def parts(rows: Mapping[str, np.ndarray], clients: int = 3) -> list[Table]:
    return [{name: values[client::clients] for name, values in rows.items()} for client in range(clients)]


def asking(*clients: Mapping[str, np.ndarray]) -> Callable[[RegressionStep], Sums]:
    """Sums of what the clients answer, each number as coarse as in a sum."""

    def ask(step: RegressionStep) -> Sums:
        total = sum(np.round(np.asarray(step.answer(columns)) * WORD) / WORD for columns in clients)
        return step.sums(np.asarray(total).tolist(), len(clients))

    return ask


def regress(rows: Mapping[str, np.ndarray], formula: str, family: str = "", **options: Any) -> Regression:
    query = regression_query(formula, family=family, bounds=options.pop("bounds", BOUNDS), **options)
    return fit(query, asking(*parts(rows)), nodes=3)


def pooled(rows: Mapping[str, np.ndarray], formula: str, family: str) -> Any:
    import pandas

    frame = pandas.DataFrame(rows)
    if family == "linear":
        return formulas.ols(formula, frame).fit()
    return formulas.glm(formula, frame, family=getattr(sm.families, FAMILIES[family])()).fit(tol=1e-13)


def assert_equal(found: Regression, model: Any) -> None:
    names = {name.replace("np.", ""): name for name in model.params.index}
    assert set(names) == set(found.terms)
    expected = [[float(numbers[names[term]]) for term in found.terms] for numbers in (model.params, model.bse)]
    assert found.coefficients == pytest.approx(expected[0], rel=1e-6, abs=1e-8)
    assert found.errors == pytest.approx(expected[1], rel=1e-6)
    assert found.p_values == pytest.approx([float(model.pvalues[names[term]]) for term in found.terms], abs=1e-6)
    intervals = np.array([model.conf_int().loc[names[term]].to_numpy() for term in found.terms])
    assert np.array(found.intervals()) == pytest.approx(intervals, rel=1e-6, abs=1e-7)
    assert found.log_likelihood == pytest.approx(model.llf, rel=1e-8)
    assert found.deviance == pytest.approx(model.ssr if found.family == "linear" else model.deviance, rel=1e-8)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("age + bmi + C(sex, [0, 1]) + C(ward, [0, 1, 2, 3])", "age + bmi + C(sex) + C(ward)"),
        ("age * C(sex, [0, 1]) + I(bmi ** 2) + log(bmi)", "age * C(sex) + I(bmi ** 2) + np.log(bmi)"),
        ("0 + age + C(ward, [0, 1, 2, 3])", "0 + C(ward) + age"),
        ("1", "1"),
    ],
)
def test_all_rows_together_give_the_same(family: str, ours: str, theirs: str) -> None:
    rows = table()
    levels = {name: values.astype(int) if name in ("sex", "ward") else values for name, values in rows.items()}
    found = regress(rows, f"{TARGETS[family]} ~ {ours}", family)
    assert (found.rows, found.missing, found.clients, found.nodes) == (600, 0, 3, 3)
    assert_equal(found, pooled(levels, f"{TARGETS[family]} ~ {theirs}", family))


@given(seed=st.integers(0, 10_000), clients=st.integers(1, 6), low=st.floats(-1000, 0), width=st.floats(100, 1e5))
def test_neither_bounds_nor_the_division_among_clients_matter(
    seed: int, clients: int, low: float, width: float
) -> None:
    rows = table(200, seed)
    query = regression_query("cost ~ age + bmi", family="linear", bounds={**BOUNDS, "age": (low, low + width)})
    found = fit(query, asking(*parts(rows, clients)), nodes=clients)
    design = np.stack([np.ones(200), rows["age"], rows["bmi"]], axis=1)
    assert found.coefficients == pytest.approx(np.linalg.lstsq(design, rows["cost"])[0], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("size", [9, 20])
def test_a_poisson_target_of_large_counts(size: int) -> None:
    rows = table()
    rows["stays"] = np.random.default_rng(1).poisson(np.exp(size + 0.03 * (rows["age"] - 60))).astype(float)
    found, model = regress(rows, "stays ~ age", "poisson"), pooled(rows, "stays ~ age", "poisson")
    assert found.coefficients == pytest.approx(model.params.tolist(), rel=1e-8)
    assert found.errors == pytest.approx(model.bse.tolist(), rel=1e-6)


def test_a_small_column_within_wide_bounds_and_a_large_one_outside_its_own() -> None:
    rows = table()
    rows["dose"] = rows["bmi"] * 1e-5
    rows["cost"] = rows["cost"] * 1e3
    assert_equal(regress(rows, "cost ~ dose + age", "linear"), pooled(rows, "cost ~ dose + age", "linear"))


def test_rows_without_a_value_are_left_out_and_counted() -> None:
    rows = table()
    rows["age"][::10] = np.nan
    rows["ward"][5::50] = 9.0  # no level of the formula
    found = regress(rows, "sick ~ age + C(ward, [0, 1, 2, 3])", "logistic")
    used = ~np.isnan(rows["age"]) & (rows["ward"] < 4)
    kept = {name: values[used] for name, values in rows.items()}
    assert (found.rows, found.missing) == (int(used.sum()), int((~used).sum()))
    kept["ward"] = kept["ward"].astype(int)
    assert_equal(found, pooled(kept, "sick ~ age + C(ward)", "logistic"))


def test_few_rows_that_are_left_out_are_given_as_five() -> None:
    rows = table()
    rows["age"][7] = np.nan
    assert regress(rows, "cost ~ age", "linear").missing == 5


# --- what cannot be estimated ---------------------------------------------------------------------------------------


def test_complete_separation_has_no_estimate() -> None:
    rows = table()
    rows["sick"] = (rows["age"] > 60).astype(float)
    with raises(ConfigurationError, check="separation", match="age"):
        regress(rows, "sick ~ bmi + age", "logistic")


def test_quasi_complete_separation_has_no_estimate() -> None:
    rows = table()
    rows["sick"][rows["age"] > 65] = 1.0
    rows["dose"] = np.maximum(rows["age"] - 65, 0) / 60
    rows["bmi"] = rows["bmi"] * (rows["age"] <= 65)
    query = regression_query("sick ~ bmi + dose", family="logistic", bounds=BOUNDS)
    steps: list[RegressionStep] = []

    def ask(step: RegressionStep) -> Sums:
        steps.append(step)
        return asking(rows)(step)

    with raises(ConfigurationError, check="separation", match="dose"):
        fit(query, ask, nodes=1)
    assert len(steps) <= 27


@pytest.mark.parametrize(("family", "value"), [("logistic", 1.0), ("logistic", 0.0), ("poisson", 0.0)])
def test_a_level_that_foretells_the_target_is_named(family: str, value: float) -> None:
    rows = table()
    rows[TARGETS[family]][rows["ward"] == 2] = value
    with raises(ConfigurationError, check="separation", match=r"C\(ward\)\[T\.2\]"):
        regress(rows, f"{TARGETS[family]} ~ age + C(ward, [0, 1, 2, 3])", family)


@pytest.mark.parametrize("family", FAMILIES)
def test_terms_that_determine_each_other_are_named(family: str) -> None:
    rows = table()
    rows["dose"] = 1 - rows["age"] / 200 + rows["bmi"] / 400
    with raises(ConfigurationError, check="collinear", match="age, bmi, dose"):
        regress(rows, f"{TARGETS[family]} ~ age + bmi + C(sex, [0, 1]) + dose", family)


@pytest.mark.parametrize(("family", "value"), [("logistic", 1.0), ("logistic", 0.0), ("poisson", 0.0)])
def test_a_target_that_is_the_same_everywhere(family: str, value: float) -> None:
    rows = table()
    rows[TARGETS[family]][:] = value
    with raises(ConfigurationError, check="one-outcome", match=TARGETS[family]):
        regress(rows, f"{TARGETS[family]} ~ age", family)


@pytest.mark.parametrize("sites", ["", "fixed"])
@pytest.mark.parametrize(("unit", "check"), [(1e9, "bounds-too-narrow"), (1e-9, "no-residuals"), (0.0, "no-residuals")])
def test_a_target_whose_bounds_are_those_of_another(unit: float, check: str, sites: str) -> None:
    """Its residuals do not fit into a query, or are lost in the last digits of a sum; errors would be of neither."""
    rows = table()
    rows["cost"] *= unit
    with raises(ConfigurationError, check=check, match="cost"):
        regress(rows, "cost ~ age + bmi", "linear", sites=sites)


def test_a_target_that_the_terms_determine() -> None:
    rows = table()
    rows["cost"] = 3 * rows["age"] + 2
    with raises(ConfigurationError, check="no-residuals", match="cost"):
        regress(rows, "cost ~ age + bmi", "linear")


def test_counts_whose_sums_have_no_room() -> None:
    rows = table()
    rows["stays"] *= 1e9
    with raises(ConfigurationError, check="target-too-large", match="stays"):
        regress(rows, "stays ~ age", "poisson")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_column_far_outside_its_bounds_is_named(family: str) -> None:
    rows = table()
    rows["age"] *= 1e9
    with raises(ConfigurationError, check="bounds-too-narrow", match="age"):
        regress(rows, f"{TARGETS[family]} ~ age + bmi", family)


@pytest.mark.parametrize("unit", [1e9, 1e-9])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_unit_of_a_column_is_that_of_its_coefficient_alone(family: str, unit: float) -> None:
    """statsmodels takes the columns as they are: of such units it loses digits, and terms in products."""
    rows, formula = table(), f"{TARGETS[family]} ~ age * bmi"
    usual = regress(rows, formula, family)
    rows["age"] *= unit
    found = regress(rows, formula, family, bounds={**BOUNDS, "age": (0.0, 120 * unit)})
    units = np.array([1.0, unit, 1.0, unit])
    assert np.array(found.coefficients) * units == pytest.approx(usual.coefficients, rel=1e-6)
    assert np.array(found.errors) * units == pytest.approx(usual.errors, rel=1e-6)


@pytest.mark.parametrize("value", [50.0, 1.0, 0.0])
def test_a_column_that_is_the_same_everywhere(value: float) -> None:
    rows = table()
    rows["age"][:] = value
    with raises(ConfigurationError, check="constant", match="age"):
        regress(rows, "sick ~ age + bmi", "logistic")


def test_a_level_that_no_row_has() -> None:
    with raises(ConfigurationError, check="empty-level"):
        regress(table(), "cost ~ C(ward, [7, 0, 1, 2, 3])", "linear")


@pytest.mark.parametrize("rows", [4, 6])
def test_too_few_rows(rows: int) -> None:
    formula = "cost ~ age + bmi + age:bmi + I(age ** 2) + I(bmi ** 2)" if rows == 6 else "cost ~ 1"
    with raises(ConfigurationError, check="too-few-rows"):
        regress(table(rows), formula, "linear")


@pytest.mark.parametrize(
    ("family", "column", "rows"),
    [("linear", "C(ward, [0, 1, 2, 3, 7])", 4), ("linear", "C(ward, [7, 0, 1, 2, 3])", 1), ("linear", "ward", 3)],
)
def test_a_level_of_fewer_than_five_rows_is_not_shown(family: str, column: str, rows: int) -> None:
    found = table()
    found["ward"][:rows] = 7.0
    if column == "ward":
        found["ward"] = (found["ward"] != 7.0).astype(float)  # the others are all 1: the few are those of 0
    with raises(ConfigurationError, check="small-cell"):
        regress(found, f"cost ~ age + {column}", family, bounds={**BOUNDS, "ward": (0.0, 4.0)})


@pytest.mark.parametrize("few", ["C(ward)[T.2]", "the reference of C(ward)"])
def test_a_level_with_fewer_than_five_of_a_class_is_not_shown(few: str) -> None:
    rows = table()
    ward = 2.0 if few == "C(ward)[T.2]" else 0.0
    inside = np.flatnonzero(rows["ward"] == ward)
    rows["sick"][inside] = 0.0
    rows["sick"][inside[:3]] = 1.0
    with raises(ConfigurationError, check="small-cell"):
        regress(rows, "sick ~ age + C(ward, [0, 1, 2, 3])", "logistic")


@pytest.mark.parametrize(("family", "value"), [("logistic", 2.0), ("poisson", -1.0)])
def test_a_target_that_the_family_does_not_have(family: str, value: float) -> None:
    rows = table()
    rows[TARGETS[family]][3] = value
    with raises(ConfigurationError, check="wrong-target"):
        regress(rows, f"{TARGETS[family]} ~ age", family)


@pytest.mark.parametrize("same_size", [False, True])
def test_other_clients_in_a_later_step_end_it(same_size: bool) -> None:
    clients = parts(table(), 4)
    query = regression_query("sick ~ age", family="logistic", bounds=BOUNDS)
    sets = iter([clients[:3], clients[:3], clients[1:] if same_size else clients[:2]])

    def ask(step: RegressionStep) -> Sums:
        return asking(*next(sets))(step)

    with raises(RoundFailed, check="other-clients"):
        fit(query, ask, nodes=4)


def test_a_column_that_nobody_has() -> None:
    with raises(AppError, check="no-such-column", match="'height'"):
        regress(table(), "sick ~ height", "logistic", bounds=(0.0, 1.0))


# --- what travels, and what is printed ------------------------------------------------------------------------------


def test_a_question_is_the_same_after_its_way_over_the_wire() -> None:
    query = regression_query("sick ~ age * C(ward, [0, 1])", family="logistic", bounds=BOUNDS)
    assert question_from_plain(question_to_plain(query)) == query
    statistics = StatisticsQuery.of(BOUNDS)
    assert question_from_plain(question_to_plain(statistics)) == statistics


def test_a_question_with_another_key_is_refused() -> None:
    plain = question_to_plain(regression_query("sick ~ age", family="logistic", bounds=BOUNDS))
    with raises(ConfigurationError, match="strata"):
        question_from_plain({**plain, "regression": {**plain["regression"], "strata": []}})
    with raises(ConfigurationError):
        question_from_plain({**plain, "bins": 7})


def test_a_server_of_0_2_0_refuses_a_regression_by_name() -> None:
    """It reads every question as one of statistics."""
    from pydantic import TypeAdapter

    from fedcore.system.plain_json import from_plain

    plain = question_to_plain(regression_query("sick ~ age", family="logistic", bounds=BOUNDS))
    with raises(ConfigurationError, match="'regression'"):
        from_plain(TypeAdapter(StatisticsQuery), plain, what="the question")


def test_more_terms_than_a_query_has_room_for() -> None:
    def question(levels: int) -> RegressionQuery:
        listed = ", ".join(map(str, range(levels)))
        return regression_query(f"cost ~ C(ward, [{listed}])", family="linear", bounds=BOUNDS)

    assert question(61).length <= MOST_VALUES
    with raises(ConfigurationError, check="too-many-terms", numbers=[62, 61]):
        question(62)


def test_the_table_holds_every_term() -> None:
    found = regress(table(), "cost ~ age + C(sex, [0, 1])", "linear")
    report = RegressionReport(found)
    lines = report.lines()
    assert [line[0] for line in lines[1:]] == ["Intercept", "age", "C(sex)[T.1]"]
    assert lines[0][3:5] == ["t", "P>|t|"]
    assert report.csv().splitlines()[2].startswith(f"age,{found.coefficients[1]!r}")
    assert report.document()["terms"]["age"]["standard_error"] == found.errors[1]
