"""A trained model answers: through the app's own predictor, strictly its own tensors, with what its file says."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result
from support.raising import raises
from typer.testing import CliRunner

from fedcore.api.trained import Prediction, as_text
from fedcore.cli.main import app
from fedcore.data import load_digits
from fedcore.errors import AppError, ConfigurationError
from fedcore.flower.app import AppBundle, FlowerApp
from fedcore.flower.apps.trained import load_trained
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.state import ModelFacts, ModelState, read_facts, write_model

ROOT = Path(__file__).parents[3]
DIGITS = ROOT / "examples" / "digits"
for example in ("digits", "femnist", "air", "cox"):
    sys.path.append(str(ROOT / "examples" / example))


def cli(*words: str) -> Result:
    done = CliRunner().invoke(app, words)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def facts_of(app: Path, **more: object) -> ModelFacts:
    sha256 = AppBundle.from_folder(app).sha256
    return replace(ModelFacts(app=app.name, app_sha256=sha256, rounds=1, time="2026-01-02T03:04:05+00:00"), **more)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    module = load_digits_module()
    write_model(ModelState.from_arrays(arrays(module)), path, facts_of(DIGITS, run_config={"seed": 7}))
    return path


def load_digits_module() -> torch.nn.Module:
    from fedcore.training.models import digits_mlp

    torch.manual_seed(0)
    return digits_mlp()


def arrays(module: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: tensor.numpy().copy() for name, tensor in module.state_dict().items()}


@pytest.fixture
def pixels(tmp_path: Path) -> Path:
    path = tmp_path / "digits.csv"
    np.savetxt(path, load_digits().test.x[:5] * 16, fmt="%d", delimiter=",")
    return path


def test_the_answers_are_the_models_own(model: Path, pixels: Path) -> None:
    done = cli("predict", str(model), "--app", str(DIGITS), "--input", str(pixels))
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(done.stdout.splitlines()))
    with torch.no_grad():
        expected = load_digits_module().eval()(torch.from_numpy(load_digits().test.x[:5])).argmax(dim=1)
    assert [int(row["digit"]) for row in rows] == expected.tolist()
    assert done.stderr == "", "nothing to warn of"


def test_as_json_it_says_what_is_known_of_the_model(model: Path, pixels: Path) -> None:
    done = cli("predict", str(model), "--app", str(DIGITS), "--input", str(pixels), "--json")
    said = json.loads(done.stdout)
    assert said["count"] == len(said["rows"]) == 5
    assert said["facts"]["rounds"] == 1
    assert said["facts"]["run_config"] == {"seed": 7}


def test_rows_go_to_a_file(model: Path, pixels: Path, tmp_path: Path) -> None:
    for name, first in (("rows.csv", "digit,probability"), ("rows.jsonl", '{"digit"')):
        arguments = ("predict", str(model), "--app", str(DIGITS), "--input", str(pixels), "--out", str(tmp_path / name))
        assert cli(*arguments).stdout == f"5 rows saved to {tmp_path / name}\n"
        assert (tmp_path / name).read_text().startswith(first)
        assert "exists already" in cli(*arguments).stderr
    refused = cli("predict", str(model), "--app", str(DIGITS), "--input", str(pixels), "--out", str(tmp_path / "x.txt"))
    assert ".csv or .jsonl" in refused.stderr


def test_another_version_of_the_app_is_said(model: Path, pixels: Path, tmp_path: Path) -> None:
    changed = tmp_path / "digits"
    shutil.copytree(DIGITS, changed, ignore=shutil.ignore_patterns("__pycache__"))
    (changed / "README.md").write_text("changed\n")
    (warning,) = load_trained(changed, model, {}).warnings
    assert "another version" in warning
    ModelState.open(model).save(tmp_path / "bare.safetensors")
    (warning,) = load_trained(DIGITS, tmp_path / "bare.safetensors", {}).warnings
    assert "does not say what made it" in warning


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda state: {"other": next(iter(state.values()))}, {"check": "tensors-differ", "match": r"'hidden1\.bias'"}),
        (lambda state: {**state, "more": np.zeros(1, np.float32)}, {"check": "tensors-differ", "match": "'more'"}),
        (
            lambda state: {name: value[..., :1].copy() for name, value in state.items()},
            {"match": r"'hidden1\.weight'.*F32\[128, 1\]"},
        ),
        (
            lambda state: {name: value.astype(np.float64) for name, value in state.items()},
            {"match": r"'hidden1\.weight'.*F64"},
        ),
    ],
)
def test_a_model_of_something_else_is_refused(tmp_path: Path, change: object, reason: dict[str, str]) -> None:
    path = tmp_path / "model.safetensors"
    ModelState.from_arrays(change(arrays(load_digits_module()))).save(path)  # type: ignore[operator]
    with raises(ConfigurationError, **reason):
        load_trained(DIGITS, path, {})


def test_the_order_of_the_tensors_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    ModelState.from_arrays(dict(reversed(arrays(load_digits_module()).items()))).save(path)
    found = load_trained(DIGITS, path, {}).module.state_dict()
    assert all(torch.equal(found[name], value) for name, value in load_digits_module().state_dict().items())


def test_a_part_of_a_personal_model_is_refused_and_a_whole_one_taken(tmp_path: Path) -> None:
    from femnist_app.task import initial_model

    path, femnist = tmp_path / "model.safetensors", ROOT / "examples" / "femnist"
    whole = arrays(initial_model(7))
    head = list(whole)[-1]
    ModelState.from_arrays({name: value for name, value in whole.items() if name != head}).save(path)
    with raises(ConfigurationError, check="partial-model", match=r"'output\.bias'"):
        load_trained(femnist, path, {"personal": head})
    ModelState.from_arrays(whole).save(path)
    assert not load_trained(femnist, path, {"personal": head}).module.training


def test_an_app_without_a_predictor_hears_how_to_write_one(tmp_path: Path) -> None:
    from air_app.task import initial_model

    path = tmp_path / "model.safetensors"
    ModelState.from_arrays(arrays(initial_model(7))).save(path)
    with raises(AppError, check="no-predictor"):
        load_trained(ROOT / "examples" / "air", path, {}).rows(path)


@pytest.mark.parametrize("row", [{"risk": torch.ones(1)}, {"risk": float("nan")}, 3.0])
def test_what_is_no_row_is_refused(model: Path, pixels: Path, row: object, monkeypatch: pytest.MonkeyPatch) -> None:
    import digits_app.predict

    monkeypatch.setattr(digits_app.predict, "predict", lambda module, path, job: [row])
    order = Prediction(model=model, app=DIGITS, file=pixels, out=None, force=False, run_config=[])
    with pytest.raises(AppError, match=r"row 1\b"):
        order.run(as_json=False)


def test_lists_and_quotes_survive_csv() -> None:
    text = as_text([{"name": 'a "b", c', "classes": [1, 2]}], ".csv")
    assert list(csv.DictReader(text.splitlines())) == [{"name": 'a "b", c', "classes": "[1, 2]"}]
    assert as_text([], ".csv") == ""


def test_the_federations_means_are_in_the_file_and_reach_the_predictor(tmp_path: Path) -> None:
    """The same patient has the same risk in `predict` as in the test of a round."""
    folder = ROOT / "examples" / "cox"
    cox = FlowerApp.load(folder)
    config = {**cox.run_config, "num-server-rounds": 1, "local-steps": 2}
    simulation = Simulation(app=cox, clients=3, run_config=config, settings=JobSettings())
    outcome = simulation.run()
    path, patients = tmp_path / "model.safetensors", tmp_path / "patients.csv"
    assert outcome.state is not None
    write_model(outcome.state, path, facts_of(folder, run_config=config, train_configs=simulation.configs))
    from cox_app.task import COLUMNS
    from cox_app.task import patients as drawn

    x = drawn(0, int(config["seed"]))[1].x[:4]
    with patients.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *x.tolist()])
    facts = read_facts(path)
    assert facts is not None
    means = facts.train_configs["config"]["statistics-mean"]
    deviations = facts.train_configs["config"]["statistics-std"]
    weights = np.ravel(next(iter(outcome.state.values())))
    expected = np.exp((x - np.array(means)) / np.array(deviations) @ weights)
    found = [row["hazard_ratio"] for row in load_trained(folder, path, {}).rows(patients)]
    assert found == pytest.approx(expected.tolist(), rel=1e-3)
