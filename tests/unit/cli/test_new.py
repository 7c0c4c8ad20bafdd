"""`fedcore new`: what it writes, and what it refuses by name."""

import ast
import importlib.util
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedcore
from fedcore.cli.main import app as command
from fedcore.cli.new.choices import TEMPLATES
from fedcore.cli.new.examples import patients_csv
from fedcore.flower.app import AppBundle, FlowerApp


@pytest.fixture
def new(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "patients.csv").write_text(patients_csv())

    def new(*words):
        return CliRunner().invoke(command, ["new", *words])

    return new


def assert_names_are_public(code, path):
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module == "fedcore":
            assert {alias.name for alias in node.names} <= set(fedcore.__all__), path
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedcore."):
            module = importlib.import_module(node.module)
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                assert hasattr(module, alias.name) or importlib.util.find_spec(name) is not None, (path, name)


def refusal(result):
    assert result.exit_code == 2, result.output
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.stderr).split())


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_template_is_an_app(new, template):
    made = json.loads(new("my-app", "--template", template, "--json").stdout)
    assert made["template"] == template
    app = FlowerApp.load(Path("my-app"))
    assert (app.name, app.clientapp, app.predictor) == ("my-app", "my_app_app.app:client", "my_app_app.predict:predict")
    for path in made["files"]:
        text = Path("my-app", path).read_text()
        assert not re.search(r"\{[{%]|[%}]\}|/tmp/", text.replace("\\{", "")), path
        if path.endswith(".py"):
            compile(text, path, "exec")
            assert_names_are_public(text, path)
            strange = re.findall(
                r"^(?:from|import) (?!fedcore\b|my_app_app\b|torch\b|numpy\b|pandas\b)(\w+)", text, re.M
            )
            assert set(strange) <= {
                "collections",
                "functools",
                "json",
                "pathlib",
                "re",
                "subprocess",
                "sys",
                "typing",
                "zlib",
            }


def test_names_of_columns_and_categories_are_all_that_an_app_has_of_a_table(new):
    made = json.loads(new("mine", "--csv", "patients.csv", "--target", "died", "--json").stdout)
    assert made["columns"]["stage"] == ["I", "II", "III"]
    bundle = AppBundle.from_folder(Path("mine"))
    assert not any("example" in path for path in bundle.files)
    everything = b"\n".join(bundle.files.values()).decode()
    cells = {cell for line in patients_csv().splitlines()[1:] for cell in line.split(",") if "." in cell}
    assert not [
        cell for cell in cells if re.search(rf"(?<![\d.]){re.escape(cell)}(?![\d.])", everything) and len(cell) > 4
    ]
    assert str(Path.cwd()) not in everything
    rows = len(patients_csv().splitlines()) - 1
    assert f"{rows} rows" not in everything
    assert made["notes"]
    assert not [note for note in made["notes"] if note in everything], "what was found is for who has the table"


def test_the_name_of_a_sites_file_goes_to_nobody(new):
    Path("jane-doe.csv").write_text(patients_csv())
    made = json.loads(new("mine", "--csv", "jane-doe.csv", "--target", "died", "--json").stdout)
    assert "jane-doe" not in b"\n".join(AppBundle.from_folder(Path("mine")).files.values()).decode()
    assert "jane-doe.csv" in made["next"][-1], "a comparison has to be told"


def test_an_app_of_a_table_says_its_clients_and_its_bounds(new):
    assert new("mine", "--csv", "patients.csv", "--target", "died").exit_code == 0
    app = FlowerApp.load(Path("mine"))
    assert app.simulation_clients == 10
    assert app.statistics["bounds"]["age"] == (0.0, 100.0)


def test_what_was_found_is_printed_with_what_comes_next(new):
    said = new("mine", "--csv", "patients.csv", "--target", "died").stdout
    assert "predicts died (binary: 0, 1) from 5 columns" in said
    assert "stage: one of I, II, III" in said
    assert "  fedcore simulate .\n" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("patients.csv",), "patients.csv' is no name for an app"),
        (("1st",), "'1st' is no name for an app"),
        (("class",), "'class' is no name for an app"),
        ((".",), "is no name for an app"),
        (("a", "--template", "tabula"), "did you mean 'tabular'?"),
        (("a", "--csv", "patients.csv"), "--csv needs --target COLUMN"),
        (("a", "--csv", "none.csv", "--target", "died"), "there is no file none.csv"),
        (("a", "--csv", "patients.csv", "--target", "dead"), "has no column 'dead'"),
        (("a", "--target", "died"), "name it with --csv FILE"),
        (("a", "--template", "image", "--csv", "patients.csv"), "--csv goes with --template tabular or survival"),
        (
            ("a", "--csv", "patients.csv", "--target", "died", "--event", "died"),
            "--event goes with --template survival",
        ),
        (
            ("a", "--csv", "patients.csv", "--target", "died", "--task", "guess"),
            "--task is classification or regression",
        ),
        (("a", "--csv", "patients.csv", "--target", "died", "--categories", "stage"), "is not COLUMN=A|B|C"),
        (("a", "--template", "survival", "--csv", "patients.csv", "--target", "years"), "needs --event COLUMN"),
        (
            ("a", "--template", "survival", "--csv", "patients.csv", "--target", "years", "--event", "stage"),
            "--event 'stage' has to be a column of 1 and 0, both of which occur; columns like that are smoker, died",
        ),
        (
            ("a", "--csv", "patients.csv", "--target", "died", "--model", "forest"),
            "--model is linear, network or trees",
        ),
        (("a", "--template", "image", "--model", "linear"), "--model goes with --template tabular"),
        (("a", "--template", "tabular", "--model", "network", "--private"), "each weight gets noise, so it is linear"),
        ((), "name the app"),
    ],
)
def test_refusals_name_what_to_do(new, words, said):
    assert said in refusal(new(*words))
    assert not Path("a").exists()


def test_a_folder_that_is_there_is_left_alone(new):
    Path("mine").mkdir()
    assert "mine is there already" in refusal(new("mine"))
    assert not list(Path("mine").iterdir())


def test_the_list_names_every_template(new):
    assert set(json.loads(new("--list", "--json").stdout)) == set(TEMPLATES)
    assert all(name in new("--list").stdout for name in TEMPLATES)


def test_a_private_app_reaches_the_epsilon_of_its_settings(new) -> None:
    """As it is written, but for fewer clients and less training: it is checked, and its rounds keep the budget."""
    assert new("my-app", "--template", "tabular", "--private").exit_code == 0
    settings = FlowerApp.load(Path("my-app")).settings
    assert (settings.dp_epsilon, settings.dp_rounds) == (8.0, 10)
    checked = CliRunner().invoke(command, ["check", "my-app", "--no-first-model", "--json"])
    assert checked.exit_code == 0, checked.output
    assert json.loads(checked.stdout)["errors"] == []
    run = ("--clients", "4", "--engine", "inline", "--run-config", "local-epochs=1", "--json")
    done = CliRunner().invoke(command, ["simulate", "my-app", *run])
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert (summary["status"], summary["rounds"]) == ("finished", 10)
    assert 0.98 * settings.dp_epsilon < summary["epsilon_spent"] <= settings.dp_epsilon


@pytest.mark.parametrize("template", ["image", "survival"])
def test_a_private_app_has_a_budget_for_its_rounds(new, template) -> None:
    made = json.loads(new("my-app", "--template", template, "--private", "--json").stdout)
    app = FlowerApp.load(Path("my-app"))
    assert app.settings.private
    assert app.settings.dp_rounds == app.run_config["num-server-rounds"]
    assert app.simulation_clients >= 28, "noise is for many"
    for path in made["files"]:
        if path.endswith(".py"):
            compile(Path("my-app", path).read_text(), path, "exec")


def test_a_template_with_many_weights_is_not_made_private(new) -> None:
    assert "lora" in refusal(new("my-app", "--template", "lora", "--private"))


@pytest.mark.parametrize(
    ("words", "network", "best"),
    [
        (("--target", "died"), False, "eval_loss:min"),
        (("--target", "stage"), False, "eval_loss:min"),
        (("--target", "years"), True, "rmse:min"),
        (("--target", "died", "--model", "network"), True, "eval_loss:min"),
        (("--target", "years", "--model", "linear"), False, "rmse:min"),
    ],
)
def test_the_model_is_linear_for_classes_and_the_best_one_is_kept(new, words, network, best):
    assert new("mine", "--csv", "patients.csv", *words).exit_code == 0
    assert ("nn.ReLU" in Path("mine", "mine_app", "model.py").read_text()) == network
    app = FlowerApp.load(Path("mine"))
    assert app.settings.best_model == best
    assert app.run_config["lr-over-rounds"] == "cosine"
