"""Tables by an agreed schema: what a site's file has to be, and what it is told when it is not."""

from pathlib import Path

import numpy as np
import pytest
from support.raising import raises

from fedcore.data import TableColumn, TableSchema, table_data
from fedcore.errors import ConfigurationError, DataError

SCHEMA = TableSchema(
    target="ill",
    task="binary",
    classes=("no", "yes"),
    columns=(
        TableColumn(name="age", kind="number", low=0, high=100),
        TableColumn(name="smoker", kind="boolean"),
        TableColumn(name="stage", kind="category", categories=("I", "II")),
    ),
)


def table(folder: Path, *rows: str, head: str = "age,smoker,stage,ill") -> Path:
    path = folder / "site.csv"
    path.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    return path


def test_cells_become_numbers_and_missing_ones_stay_missing(tmp_path):
    found = SCHEMA.read(table(tmp_path, "61,yes,II,yes", " ?,0, ,no", "40.5,,I,yes", "50,1,I,"))
    assert found.x.dtype == np.float32
    assert np.array_equal(found.x, [[61, 1, 0, 1], [np.nan, 0, 0, 0], [40.5, np.nan, 1, 0]], equal_nan=True)
    assert found.y.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("head", "rows"),
    [
        ("ill;stage;more;smoker;age", ("yes;II;x;1;61",)),
        ("ill\tstage\tmore\tsmoker\tage", ("yes\tII\tx\ttrue\t61",)),
        ("\ufeffill, stage, more, smoker, age", ("yes, II, x, Y, 61",)),
    ],
)
def test_columns_stand_in_any_order_beside_others(tmp_path, head, rows):
    found = SCHEMA.read(table(tmp_path, *rows, head=head))
    assert found.x.tolist() == [[61, 1, 0, 1]]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("sixty,1,I,yes", {"check": "wrong-cells", "match": r"'age'.*1\D+2"}),
        ("inf,1,I,yes", {"check": "wrong-cells", "match": r"'age'.*\b1\b"}),
        ("60,perhaps,I,yes", {"check": "wrong-cells", "match": r"'smoker'.*\b1\b"}),
        ("60,1,IV,yes", {"check": "wrong-cells", "match": r"'stage'.*\b1\b.*I, II"}),
        ("60,1,i,yes", {"check": "capitals", "match": r"'stage'.*\b1\b.*I, II"}),
        ('"60,5",1,I,yes', {"check": "decimal-comma", "match": r"'age'.*\b1\b"}),
        ("60,1,I,unknown", {"check": "wrong-cells", "match": r"'ill'.*\b1\b.*no.*yes"}),
    ],
)
def test_a_cell_that_does_not_fit_is_counted_and_not_repeated(tmp_path, row, said):
    with raises(DataError, **said) as refused:
        SCHEMA.read(table(tmp_path, "61,1,I,no", row))
    assert not any(word in str(refused.value) for word in ("sixty", "perhaps", "IV", "unknown"))


def test_a_file_without_a_column_says_which_was_meant(tmp_path):
    path = table(tmp_path, "61,1,I,no", head="Age,smoker,stage,ill")
    with raises(DataError, check="columns-missing", match=r"schema\.toml.*'age'.*'Age'"):
        SCHEMA.read(path)


@pytest.mark.parametrize(("content", "said"), [(b"", {"check": "not-csv"}), (b"age\n\xff\n", {"check": "not-utf-8"})])
def test_a_file_that_is_no_csv_is_refused(tmp_path, content, said):
    path = tmp_path / "site.csv"
    path.write_bytes(content)
    with raises(DataError, **said):
        SCHEMA.read(path)


def test_whole_numbers_may_be_written_with_a_point(tmp_path):
    schema = TableSchema(target="ill", task="classes", classes=("1", "2", "3"), columns=SCHEMA.columns[:1])
    assert schema.read(table(tmp_path, "1,2.0", "2,3", head="age,ill")).y.tolist() == [1, 2]


def test_rows_to_predict_need_no_target(tmp_path):
    path = table(tmp_path, "61,1,I", head="age,smoker,stage")
    assert SCHEMA.read(path, targets=False).x.shape == (1, 4)


def test_a_schema_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "schema.toml"
    odd = TableColumn(name='a "b" =\\ ü', kind="category", categories=("x,y", "]"))
    schema = TableSchema(
        target="t", task="regression", target_low=-10, target_high=1e6, columns=(odd,), left_out=(("id", "an id"),)
    )
    path.write_text(schema.to_toml(), encoding="utf-8")
    assert TableSchema.load(path) == schema


@pytest.mark.parametrize(
    "text",
    [
        "",
        'target = "t"\ntask = "guess"\n[columns]\na = {kind = "boolean"}\n',
        'target = "t"\ntask = "binary"\nclasses = ["a"]\n[columns]\na = {kind = "boolean"}\n',
        'target = "a"\ntask = "regression"\n[columns]\na = {kind = "boolean"}\n',
        'target = "t"\ntask = "regression"\n[columns]\na = {kind = "number", low = 1, high = 0}\n',
        'target = "t"\ntask = "regression"\n[columns]\na = {kind = "category"}\n',
        'target = "t"\ntask = "regression"\nhue = 1\n[columns]\na = {kind = "boolean"}\n',
    ],
)
def test_a_schema_that_means_nothing_is_refused(tmp_path, text):
    path = tmp_path / "schema.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"schema\.toml"):
        TableSchema.load(path)


def test_a_site_has_all_rows_of_its_own_file_and_a_simulated_one_a_share(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDCORE_DATA", raising=False)
    path = table(tmp_path, *(f"{row},1,I,yes" for row in range(100)))
    node = {"partition-id": 1, "num-partitions": 4}
    train, test = table_data(SCHEMA, {"csv": "site.csv"}, {**node, "csv": str(path)}, tmp_path)
    assert sorted([*train.x[:, 0], *test.x[:, 0]]) == list(range(100))
    assert len(test) == 20
    with raises(DataError, check="no-table"):
        table_data(SCHEMA, {"csv": "site.csv"}, node, tmp_path)
    (tmp_path / ".example-csv").write_text("site.csv\n")
    parts = [
        table_data(SCHEMA, {"csv": "other.csv"}, {**node, "partition-id": client}, tmp_path) for client in range(4)
    ]
    rows = [set(train.x[:, 0]) | set(test.x[:, 0]) for train, test in parts]
    assert sorted(value for part in rows for value in part) == list(range(100))
    with raises(DataError, check="too-few-rows", match=r"\b60\b"):
        table_data(SCHEMA, {"csv": "other.csv"}, {"partition-id": 59, "num-partitions": 60}, tmp_path)


def test_each_client_has_a_file_of_its_own_if_there_is_a_folder_of_them(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_DATA", str(tmp_path))
    (tmp_path / "sites").mkdir()
    for name, rows in (("a", 5), ("b", 10)):
        lines = ["age,smoker,stage,ill", *(f"{ord(name)},1,I,{'yes' if row % 2 else 'no'}" for row in range(rows))]
        (tmp_path / "sites" / f"{name}.csv").write_text("\n".join(lines) + "\n")
    parts = [
        table_data(SCHEMA, {"csv": "sites"}, {"partition-id": share, "num-partitions": 2}, tmp_path) for share in (0, 1)
    ]
    assert [len(train) + len(test) for train, test in parts] == [5, 10]
    assert parts[1][0].x[0, 0] == ord("b")
    with raises(DataError, check="files-of-clients"):
        table_data(SCHEMA, {"csv": "sites"}, {"partition-id": 0, "num-partitions": 3}, tmp_path)


def test_categories_have_the_spread_of_equally_frequent_ones():
    assert SCHEMA.spreads == {"stage=I": 0.5, "stage=II": 0.5}


def test_columns_that_no_model_reads_are_there_for_who_asks(tmp_path):
    path = table(tmp_path, "7,61,1,I,yes,", "8,50,0,II,no,x", head="id,age,smoker,stage,ill,ward")
    assert SCHEMA.other_columns(path) == [{"id": "7", "ward": None}, {"id": "8", "ward": "x"}]
    assert SCHEMA.other_columns(table(tmp_path, "61,1,I,yes", "50,0,II,no")) == [{}, {}]
