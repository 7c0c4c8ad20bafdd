"""`fedcore new --model trees`: the app works through what its README says, and its answers are XGBoost's."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from support.later import Later
from typer.testing import CliRunner

from fedcore.cli.main import app as command
from fedcore.cli.new.examples import patients_csv
from fedcore.data import TableSchema
from fedcore.flower.app import FlowerApp
from fedcore.state import ModelState
from fedcore.trees import BoostingSettings, Cuts, Ensemble
from fedcore.trees.cuts import LAST_CUT

xgboost = Later("xgboost")
FEW = "num-server-rounds=3 test-every=2 early-stopping-rounds=0"
RUN = ("--clients", "3", "--engine", "inline", "--run-config", FEW, "--json")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = patients_csv().splitlines()
    head = [f"visit,{lines[0].replace('marker', 'marker [mg]')}", *(f"v{i},{line}" for i, line in enumerate(lines[1:]))]
    Path("patients.csv").write_text("\n".join(head) + "\n")


def done(*words: object) -> str:
    result = CliRunner().invoke(command, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*words: str) -> None:
    assert CliRunner().invoke(command, list(words)).exit_code == 2


@pytest.mark.parametrize(
    ("target", "objective"),
    [("died", "binary:logistic"), ("years", "reg:squarederror"), ("stage", "multi:softprob")],
)
def test_an_app_of_a_table_grows_trees_whose_answers_are_xgboosts(target: str, objective: str) -> None:
    done("new", target, "--csv", "patients.csv", "--target", target, "--model", "trees")
    app = FlowerApp.load(Path(target))
    assert app.run_config["objective"] == objective
    assert json.loads(done("check", target, "--no-first-model", "--json"))["errors"] == []
    summary = json.loads(done("simulate", target, *RUN, "--out", "model.safetensors"))
    figures = {"died": {"eval_loss", "eval_acc", "auc"}, "years": {"eval_loss", "rmse"}}
    assert set(summary["metrics"]) == figures.get(target, {"eval_loss", "eval_acc"})
    assert set(summary["results"]["evaluate"]) == {"2", "3"}
    done("predict", "model.safetensors", "--app", target, "--input", "patients.csv", "--out", "answers.csv")
    done("export", "model.safetensors", "--app", target, "--to", "xgboost", "--out", "model.json")
    booster, schema = xgboost.Booster(model_file="model.json"), TableSchema.load(Path(target, "schema.toml")).coded()
    rows = xgboost.DMatrix(
        schema.read(Path("patients.csv")).x,
        feature_names=booster.feature_names,
        feature_types=booster.feature_types,
        enable_categorical=True,
    )
    assert ("c" in booster.feature_types) == (target != "stage")
    theirs = booster.predict(rows)
    with Path("answers.csv").open() as file:
        answers = list(csv.DictReader(file))
    assert [row["visit"] for row in answers] == [f"v{i}" for i in range(len(theirs))]
    column = {"years": "years", "died": "probability of 1"}.get(target, "probability")
    ours = np.array([float(row[column]) for row in answers])
    expected = theirs.max(axis=1) if target == "stage" else theirs * schema.target_unit
    assert ours == pytest.approx(expected, abs=1e-6)
    if target != "years":
        labels = theirs.argmax(axis=1) if target == "stage" else (theirs > 0.5).astype(int)
        assert [row[target] for row in answers] == [schema.classes[label] for label in labels]


@pytest.mark.parametrize(
    "question", [("--by", "stage"), ("--crosstab", "stage smoker"), ("--glm", "died ~ age + stage * smoker")]
)
def test_its_categories_answer_as_those_of_an_app_without_trees(question: tuple[str, ...]) -> None:
    """Trees take a category as one column of numbers, and questions name each of its levels."""
    for name, words in (("grown", ("--model", "trees")), ("trained", ())):
        done("new", name, "--csv", "patients.csv", "--target", "died", *words)
        done("stats", name, "--clients", 2, *question, "--out", f"{name}.csv")
    assert Path("grown.csv").read_text() == Path("trained.csv").read_text()


def test_an_early_stop_names_the_round_that_the_model_keeps() -> None:
    done("new", "stops", "--csv", "patients.csv", "--target", "died", "--model", "trees")
    few = "num-server-rounds=6 learning-rate=1.0 early-stopping-rounds=1"
    run = ("--clients", 2, "--engine", "inline", "--run-config", few, "--json", "--out", "model.safetensors")
    summary = json.loads(done("simulate", "stops", *run))
    state = ModelState.open(Path("model.safetensors"))
    rounds = Ensemble.from_arrays({name: state[name] for name in state}).rounds
    assert (summary["metrics"]["best_round"], summary["rounds"]) == (rounds, rounds + 1)
    by_round = {int(number): one["eval_loss"] for number, one in summary["results"]["evaluate"].items()}
    assert min(by_round, key=by_round.__getitem__) == rounds


def test_other_programs_than_xgboost_and_other_apps_are_refused_by_name() -> None:
    for target in ("died", "years"):
        done("new", target, "--csv", "patients.csv", "--target", target, "--model", "trees")
    names = TableSchema.load(Path("died", "schema.toml")).coded().features
    model = Ensemble(BoostingSettings(), Cuts.of([[LAST_CUT]] * len(names)), names, 0.5, 1)
    ModelState.from_arrays(model.to_arrays()).save(Path("model.safetensors"))
    for kind in ("torch", "peft"):
        refused("export", "model.safetensors", "--app", "died", "--to", kind, "--out", "program")
        assert not Path("program").exists()
    refused("predict", "model.safetensors", "--app", "years", "--input", "patients.csv")


@pytest.mark.parametrize(
    "words",
    [
        ("--csv", "patients.csv", "--target", "died", "--model", "trees", "--private"),
        ("--template", "survival", "--model", "trees"),
    ],
)
def test_what_trees_cannot_learn_is_refused_before_anything_is_written(words: tuple[str, ...]) -> None:
    refused("new", "mine", *words)
    assert not Path("mine").exists()
