"""A table's ONNX program takes the columns of a file and gives the answers of `fedcore predict` for the same rows."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from typer.testing import CliRunner

from fedcore.cli.main import app
from fedcore.data.graphs.table_graph import CLASSES_KEY, fed_columns
from fedcore.data.tables import TableSchema

_WARDS = ["north wing", "süd", "O'Brien (3)", "a.b", "0"]
_CELLS = {
    "age at entry": ["60.5", "-3", "1e3", " 41.25 ", ""],
    "ward": [" süd", "north wing ", "O'Brien (3)", "a.b", "0", "?", "NA", ""],
    "grade": ["1", "2.0", " 3", "01", ""],
    "half": ["-0.5", "0.50", "-.5", "0", "0.0", ""],
    "smoker": ["YES", "no", " True", "0.0", ""],
    "stage": ["I", "II", "III", ""],
    "died": ["0", "1"],
    "cost": ["61000", "", "58000.5"],
}
"""What a file may have, odd but within the schema."""


def command(*words: str) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, path = np.random.default_rng(1), tmp_path_factory.mktemp("table") / "patients.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_CELLS)
        for _ in range(120):
            age, grade = rng.normal(60, 12), int(rng.integers(1, 4))
            died = int(rng.random() < 1 / (1 + np.exp(-(age - 60) / 10 - grade + 2)))
            ward, stage = rng.choice([*_WARDS, ""]), rng.choice(["I", "II", "III"])
            half, smoker = rng.choice(["-0.5", "0", "0.5"]), rng.choice(["yes", "no"])
            cost = round(1000 * age + rng.normal(0, 3000))
            writer.writerow([f"{age:.1f}", ward, grade, half, smoker, stage, died, cost])
    return path


@pytest.mark.parametrize(
    ("target", "weight", "model"),
    [
        ("died", "none", "linear"),
        ("died", "balanced", "linear"),
        ("stage", "balanced", "linear"),
        ("cost", "", "network"),
        ("died", "", "trees"),
        ("stage", "", "trees"),
        ("cost", "", "trees"),
    ],
)
def test_a_program_answers_as_predict_does(
    table: Path, target: str, weight: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    categories = ("--categories", "grade=1|2|3", "--categories", "half=-0.5|0|0.5")
    name = f"{model}-by-{target}-{weight}".rstrip("-")  # a process imports a package of one name once
    command("new", name, "--csv", str(table), "--target", target, "--model", model, *categories)
    config = "num-server-rounds=1" + (f' class-weight="{weight}"' if weight else "")
    quick = ("--clients", "2", "--run-config", config, "--engine", "inline")
    command("simulate", name, *quick, "--out", "model.safetensors")
    command("export", "model.safetensors", "--app", name, "--to", "onnx", "--out", "model.onnx")
    schema = TableSchema.load(tmp_path / name / "schema.toml")
    rows = odd_rows(60)
    session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    assert {one.name for one in session.get_inputs()} == {column.name for column in schema.columns}

    answers = session.run(None, fed_columns(schema, rows))
    expected = predicted(name, rows)
    if target == "cost":
        assert np.allclose(answers[0], [float(row["cost"]) for row in expected], rtol=1e-6)
        return
    labels, chances = answers
    classes = json.loads({entry.key: entry.value for entry in onnx.load("model.onnx").metadata_props}[CLASSES_KEY])
    assert labels.tolist() == [row[target] for row in expected]
    column = "probability of 1" if target == "died" else "probability"
    found = chances[:, classes.index("1")] if target == "died" else chances.max(axis=1)
    assert np.allclose(found, [float(row[column]) for row in expected], rtol=0, atol=1e-6)
    assert np.allclose(chances.sum(axis=1), 1, atol=1e-6)

    # What no column of the schema knows counts as missing.
    strange = {"ward": "west", "grade": "4", "half": "nan", "smoker": "perhaps"}
    unknown = [{**row, **strange} for row in rows]
    missing = predicted(name, [{**row, **dict.fromkeys(strange, "")} for row in rows])
    unknown_chances = session.run(None, fed_columns(schema, unknown))[1]
    of_unknown = unknown_chances[:, classes.index("1")] if target == "died" else unknown_chances.max(axis=1)
    assert np.allclose(of_unknown, [float(row[column]) for row in missing], rtol=0, atol=1e-6)


def odd_rows(count: int) -> list[dict[str, str]]:
    """Rows with cells of `_CELLS` in many combinations."""
    return [
        {name: cells[(row + at * row // 5) % len(cells)] for at, (name, cells) in enumerate(_CELLS.items())}
        for row in range(count)
    ]


def predicted(name: str, rows: list[dict[str, str]]) -> list[dict[str, Any]]:
    """What `fedcore predict` makes of a file with these rows, in the current folder."""
    with Path("rows.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(_CELLS))
        writer.writeheader()
        writer.writerows(rows)
    words = ("--app", name, "--input", "rows.csv", "--out", "answers.csv", "--force")
    command("predict", "model.safetensors", *words)
    with Path("answers.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))
