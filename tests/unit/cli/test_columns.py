"""What is read off a CSV file, what is left out of it, and what is refused."""

import numpy as np
import pandas
import pytest
from support.raising import raises

from fedcore.cli.new.columns import coarse_bounds, infer_table
from fedcore.errors import ConfigurationError, DataError

ROWS = 60


@pytest.fixture
def save(tmp_path):
    def save(**columns):
        path = tmp_path / "table.csv"
        rng = np.random.default_rng(0)
        pandas.DataFrame({"age": rng.normal(50, 10, ROWS).round(1), **columns}).to_csv(path, index=False)
        return path

    return save


def repeated(*values):
    return [values[row % len(values)] for row in range(ROWS)]


def test_kinds_of_columns(save):
    path = save(
        smoker=repeated("yes", "no", None),
        stage=repeated("I", "II", "III"),
        sex=repeated(0, 1),
        loss=repeated(-3.5, 20, 7000),
        ill=repeated("ill", "healthy"),
    )
    schema = infer_table(path, "ill").schema
    assert {one.name: one.kind for one in schema.columns} == {
        "age": "number", "smoker": "boolean", "stage": "category", "sex": "boolean", "loss": "number",
    }  # fmt: skip
    assert (schema.task, schema.classes) == ("binary", ("healthy", "ill"))
    assert schema.columns[2].categories == ("I", "II", "III")
    assert (schema.columns[4].low, schema.columns[4].high) == (-10, 10_000)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([f"P{row}" for row in range(ROWS)], "different in every row"),
        (list(range(1000, 1000 + ROWS)), "different in every row"),
        ([None] * ROWS, "all its values are missing"),
        (repeated("same"), "same value in every row"),
        (repeated("2024-01-31", "2023-12-01"), "dates"),
        (repeated("31.12.2023", "1.2.2024"), "dates"),
        (repeated("3,5", "4,75", "1,0"), "decimal comma"),
        (repeated(*(f"street {n}" for n in range(25))), "25 categories, more than 20"),
    ],
)
def test_a_column_that_no_model_should_see_is_left_out_with_the_reason(save, values, why):
    found = infer_table(save(odd=values, ill=repeated(0, 1)), "ill")
    assert [one.name for one in found.schema.columns] == ["age"]
    assert why in dict(found.schema.left_out)["odd"]
    assert any("column 'odd' is left out" in note and why in note for note in found.notes)


def test_given_categories_stand_for_those_in_the_file(save):
    path = save(place=repeated("Bonn", "Rome"), ill=repeated(0, 1))
    schema = infer_table(path, "ill", categories={"place": ("Bonn", "Oslo", "Rome")}).schema
    assert schema.columns[1].categories == ("Bonn", "Oslo", "Rome")
    with raises(ConfigurationError, check="no-such-column", match=r"'plce'.*'place'"):
        infer_table(path, "ill", categories={"plce": ("a", "b")})


@pytest.mark.parametrize(
    ("values", "task", "expected", "classes"),
    [
        (repeated(True, False), "", "binary", ("False", "True")),
        (repeated("no", "yes"), "", "binary", ("no", "yes")),
        (repeated(10, 9, 2), "", "classes", ("2", "9", "10")),
        (repeated(10, 9, 2), "regression", "regression", ()),
        (list(np.linspace(0, 3, ROWS)), "", "regression", ()),
    ],
)
def test_tasks(save, values, task, expected, classes):
    schema = infer_table(save(target=values), "target", task=task).schema
    assert (schema.task, schema.classes) == (expected, classes)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (repeated(1), {"check": "one-value", "match": "'ill'"}),
        ([f"name {row}" for row in range(ROWS)], {"check": "too-many-classes", "match": r"\b60\b"}),
        ([None] * 30 + repeated(0, 1)[:30], {"check": "too-few-rows", "match": r"\b30\b.*'ill'"}),
    ],
)
def test_a_target_that_nothing_can_be_learned_of_is_refused(save, values, said):
    with raises(DataError, **said):
        infer_table(save(ill=values), "ill")


def test_a_target_that_is_not_there_names_the_nearest(save):
    with raises(ConfigurationError, check="no-such-column", match=r"'Ill'.*'ill'"):
        infer_table(save(ill=repeated(0, 1)), "Ill")


def test_rare_categories_and_missing_values_are_said(save):
    path = save(
        place=["Bonn"] * (ROWS - 2) + ["Rome", "Rome"], dose=repeated(1.5, None, None, 2.5), ill=repeated(0, 1, None)
    )
    notes = " ".join(infer_table(path, "ill").notes)
    assert "1 categories of 'place' occur in fewer than 5 rows" in notes
    assert "column 'dose' is missing in 50% of the rows" in notes
    assert "20 rows have no 'ill'" in notes


@pytest.mark.parametrize(
    ("values", "bounds"), [((3.0, 87.0), (0, 100)), ((-0.02, 5.0), (-0.1, 10)), ((-700.0, -3.0), (-1000, 0))]
)
def test_bounds_are_powers_of_ten_around_the_values(values, bounds):
    assert coarse_bounds(np.array(values)) == bounds
