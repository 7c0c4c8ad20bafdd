"""Formulas of a regression, and what they stand for in a table."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.raising import raises

from fedcore.data.regression.formula import FUNCTIONS, STATEFUL, Formula
from fedcore.data.regression.resolve import regression_query
from fedcore.data.tables import TableColumn, TableSchema
from fedcore.errors import ConfigurationError

SCHEMA = TableSchema(
    target="readmitted",
    task="binary",
    classes=("no", "yes"),
    columns=(
        TableColumn(name="age", kind="number", low=0, high=100),
        TableColumn(name="blood pressure", kind="number", low=0, high=1000),
        TableColumn(name="sex", kind="category", categories=("F", "M", "other")),
        TableColumn(name="smoker", kind="boolean"),
    ),
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("y ~ a + b", ["a", "b"]),
        ("y~a*b", ["a", "b", "a:b"]),
        ("y ~ a:b + a", ["a", "a:b"]),
        ("y ~ a + a", ["a"]),
        ("y ~ a*b*c", ["a", "b", "c", "a:b", "a:c", "b:c", "a:b:c"]),
        ("y ~ log(a) + I(b**2) + sqrt(`c d`)", ["log(a)", "I(b ** 2)", "sqrt(c d)"]),
        ("y ~ C(a, [0, -1, 2.5])", ["C(a)"]),
        ("y ~ 1", []),
    ],
)
def test_terms(text: str, names: list[str]) -> None:
    formula = Formula.parse(text)
    assert formula.target == "y"
    assert [":".join(part.label for part in term) for term in formula.terms] == names
    assert formula.intercept


@pytest.mark.parametrize("text", ["y ~ a - 1", "y ~ 0 + a", "y ~ a + 0", "y ~ -1 + a"])
def test_no_intercept(text: str) -> None:
    assert not Formula.parse(text).intercept


@pytest.mark.parametrize(
    "text",
    ["", "y", "y ~", "~ a", "y ~ a +", "y ~ a b", "y ~ a - b", "y ~ y", "y ~ 0", "y ~ 2", "y ~ a ++ b", "y ~ (a)",
     "y ~ I(a)", "y ~ I(a ** 9)", "y ~ I(a ** 2.5)", "y ~ C(a, [1])", "y ~ C(a, [1, 1])", "y ~ C(a, 1)", "y ~ log(a",
     "y ~ open('file')", "y ~ __import__(os)", "y ~ a; b", "y ~ log(log(a))"],
)  # fmt: skip
def test_what_is_no_formula(text: str) -> None:
    with raises(ConfigurationError, check="formula"):
        Formula.parse(text)


@pytest.mark.parametrize("name", sorted(STATEFUL))
def test_what_depends_on_a_sites_rows_is_refused_by_name(name: str) -> None:
    with raises(ConfigurationError, check="depends-on-site", match=rf"{name}\(\)"):
        Formula.parse(f"y ~ {name}(age)")


@given(st.text(st.sampled_from("yab ~+-*:()[],`'12CIlog"), max_size=30))
def test_any_text_is_a_formula_or_a_configuration_error(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        Formula.parse(text)


def test_every_function_maps_single_values() -> None:
    query = regression_query(
        f"y ~ {' + '.join(f'{name}(x)' for name in FUNCTIONS)}", family="linear", bounds=(1.0, 8.0)
    )
    assert [(column.low, column.high) for column in query.columns][2] == (0.0, 3.0)


def test_a_schema_names_the_levels_the_bounds_and_the_family() -> None:
    query = regression_query("readmitted ~ age + sex + C(smoker) + `blood pressure`", schema=SCHEMA)
    assert query.family == "logistic"
    assert query.target == "y"
    assert query.names == ("Intercept", "age", "sex[T.M]", "sex[T.other]", "C(smoker)[T.1]", "blood pressure")
    assert query.app_columns == ("y", "age", "sex=M", "sex=other", "smoker", "blood pressure", "sex=F")
    assert (query.columns[0].low, query.columns[0].high) == (0, 100)


def test_levels_in_the_formula_choose_the_reference() -> None:
    query = regression_query('readmitted ~ C(sex, ["M", "F"])', schema=SCHEMA)
    assert query.names == ("Intercept", "C(sex)[T.F]")
    assert query.one_of == (("sex=M", "sex=F"),)


def test_without_an_intercept_the_first_category_has_all_its_levels() -> None:
    query = regression_query("readmitted ~ 0 + age + sex + C(smoker)", schema=SCHEMA)
    assert query.names == ("age", "sex[F]", "sex[M]", "sex[other]", "C(smoker)[T.1]")


def test_a_regression_is_in_the_unit_of_the_table() -> None:
    schema = TableSchema(
        target="cost", task="regression", columns=SCHEMA.columns, target_low=0, target_high=5000, target_unit=1000
    )
    query = regression_query("cost ~ age", schema=schema)
    assert (query.family, query.unit, query.target_low, query.target_high) == ("linear", 1000, 0, 5000)


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ("readmitted ~ agee", "no-such-column"),
        ("readmitted ~ C(height, [0, 1])", "no-such-column"),
        ("discharged ~ age", "family"),
        ('readmitted ~ C(sex, ["F", "X"])', "level"),
        ("readmitted ~ sex:age", "lower-terms"),
        ("readmitted ~ sex + sex:age", "lower-terms"),
        ("readmitted ~ C(age)", "no-levels"),
        ('readmitted ~ C(age, ["young", "old"])', "level"),
        ("readmitted ~ age + C(age, [1, 2]) + age:C(age, [1, 3])", "levels"),
    ],
)
def test_what_the_table_does_not_have(text: str, check: str) -> None:
    with raises(ConfigurationError, check=check):
        regression_query(text, schema=SCHEMA)


def test_a_number_without_bounds() -> None:
    with raises(ConfigurationError, check="no-bounds", match="'dose'"):
        regression_query("sick ~ dose", family="logistic", bounds={"age": (0.0, 1.0)})
    with raises(ConfigurationError, check="no-bounds"):
        regression_query("sick ~ dose", family="logistic")


def test_an_unknown_family() -> None:
    with raises(ConfigurationError, check="family", match="'gamma'"):
        regression_query("sick ~ dose", family="gamma", bounds=(0.0, 1.0))
