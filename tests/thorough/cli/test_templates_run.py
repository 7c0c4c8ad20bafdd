"""Every template runs as it is generated, learns, and answers for new examples."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedcore.cli.main import app as command
from fedcore.cli.new.choices import TEMPLATES
from fedcore.cli.new.examples import breast_cancer_csv, patients_csv
from fedcore.state import ModelState

ANSWERS = {
    "image": "class", "tabular": "diagnosis", "text": "label", "lora": "goes on", "chat": "answer", "survival": "risk"
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("apps")


def fedcore(*words):
    result = CliRunner().invoke(command, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


def new_examples(folder, template):
    path = folder / f"new-{template}.{'png' if template == 'image' else 'csv'}"
    match template:
        case "image":
            Image.new("L", (8, 8), 200).save(path)
        case "tabular":
            path.write_text("".join(breast_cancer_csv().splitlines(keepends=True)[:4]))
        case "survival":
            path.write_text("age,marker,stage,smoker\n90,20,III,1\n40,1,I,0\n")
        case _:
            path.write_text("please cancel my appointment next week\n")
    return path


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_is_trained_and_asked(folder, template, monkeypatch):
    monkeypatch.delenv("FEDCORE_DATA", raising=False)
    app, model = folder / f"an-{template}", folder / f"{template}.safetensors"
    fedcore("new", app, "--template", template)
    report = json.loads(fedcore("check", app, "--json"))
    assert report["errors"] == []
    rounds = 1 if template in ("lora", "chat") else 4
    run = (
        "--clients",
        3,
        "--engine",
        "inline",
        "--run-config",
        f"num-server-rounds={rounds}",
        "--out",
        model,
        "--json",
    )
    metrics = json.loads(fedcore("simulate", app, *run))["metrics"]
    if template in ("image", "tabular", "text"):
        assert metrics["eval_acc"] > 0.8
    rows = list(
        csv.DictReader(io.StringIO(fedcore("predict", model, "--app", app, "--input", new_examples(folder, template))))
    )
    assert rows
    assert ANSWERS[template] in rows[0]
    if template == "chat":
        fedcore("export", model, "--app", app, "--to", "peft", "--out", folder / "adapter")
        assert {path.name for path in (folder / "adapter").iterdir()} >= {
            "adapter_config.json",
            "adapter_model.safetensors",
        }
    if template == "survival":
        assert float(rows[0]["risk"]) > float(rows[1]["risk"])


def test_a_regression_learns_in_the_units_of_its_target_and_keeps_the_statistics(folder, monkeypatch):
    """Numbers around a million, with values missing: what is learned is far from what a raw network would."""
    monkeypatch.delenv("FEDCORE_DATA", raising=False)
    rng = np.random.default_rng(1)
    age, size = rng.normal(2000, 15, 400), rng.uniform(30, 200, 400)
    price = 1e6 + 4000 * size + 2000 * (age - 2000)
    lines = [
        f"{a:.0f},{'' if missing else f'{s:.1f}'},{p:.0f}"
        for a, s, p, missing in zip(age, size, price, rng.random(400) < 0.05, strict=True)
    ]
    table = folder / "houses.csv"
    table.write_text("\n".join(["built,size,price", *lines]) + "\n")
    app, model = folder / "houses", folder / "houses.safetensors"
    fedcore("new", app, "--csv", table, "--target", "price")
    fedcore("simulate", app, "--clients", 3, "--engine", "inline", "--out", model)
    rows = list(csv.DictReader(io.StringIO(fedcore("predict", model, "--app", app, "--input", table))))
    errors = np.array([float(row["price"]) for row in rows]) - price
    assert np.sqrt((errors**2).mean()) < 0.6 * price.std()
    state = ModelState.open(model)
    assert state["0.mean"][0] == pytest.approx(age.mean(), abs=2)
    assert state["4.std"][0] == pytest.approx(price.std() / 10_000, rel=0.1)


def test_a_site_whose_table_differs_is_told_before_it_trains(folder, monkeypatch):
    monkeypatch.setenv("FEDCORE_DATA", str(folder / "other"))
    (folder / "other").mkdir()
    (folder / "patients.csv").write_text(patients_csv())
    app = folder / "strict"
    fedcore("new", app, "--csv", folder / "patients.csv", "--target", "died")
    Path(folder / "other" / "patients.csv").write_text(patients_csv().replace("marker", "Marker", 1))
    words = ["--clients", "3", "--engine", "inline", "--run-config", 'csv="patients.csv"']
    result = CliRunner().invoke(command, ["simulate", str(app), *words])
    assert result.exit_code != 0
    assert "lacks a column of schema.toml: 'marker'; did you mean 'Marker'?" in result.output


@pytest.mark.parametrize("script", ["trainer", "guarded"])
def test_a_script_is_trained_as_it_is(folder, script):
    path = folder / f"{script}.py"
    path.write_text((Path(__file__).parents[2] / "support" / "scripts" / f"{script}.py.txt").read_text())
    app = folder / f"from-{script}"
    fedcore("new", app, "--from", path)
    run = ("--clients", 3, "--run-config", "num-server-rounds=3", "--json")
    metrics = json.loads(fedcore("simulate", app, *run))["metrics"]
    assert metrics["eval_acc"] > 0.6 if script == "trainer" else metrics["eval_loss"] < 1.5
