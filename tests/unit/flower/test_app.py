import sys
from pathlib import Path

import pytest
from support.raising import raises

from fedcore.errors import AppError, ConfigurationError, UnknownKey
from fedcore.flower.app import FlowerApp
from fedcore.flower.loading import load_object

GOOD = """
[project]
name = "demo"
[tool.flwr.app.components]
serverapp = "a:app"
clientapp = "b:app"
[tool.flwr.app.config]
lr = 0.1
[tool.flwr.app.config.nested]
depth = 2
[tool.fedcore]
field-bits = 21
"""


def load(folder: Path, text: str) -> FlowerApp:
    (folder / "pyproject.toml").write_text(text)
    return FlowerApp.load(folder)


def test_reads_what_flower_reads(tmp_path: Path) -> None:
    app = load(tmp_path, GOOD)
    assert (app.name, app.serverapp, app.clientapp) == ("demo", "a:app", "b:app")
    assert app.run_config == {"lr": 0.1, "nested.depth": 2}
    assert app.settings.field_bits == 21


def test_a_simulation_has_the_clients_that_the_app_wants(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD).simulation_clients == 10
    assert load(tmp_path, GOOD + "simulation-clients = 3\n").simulation_clients == 3
    for wrong in ("0", "true", '"3"'):
        with pytest.raises(AppError, match="simulation-clients"):
            load(tmp_path, GOOD + f"simulation-clients = {wrong}\n")


def test_metrics_of_an_own_evaluation_have_a_sentence_each(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD).metrics == {}
    table = '[tool.fedcore.metrics]\n"eval auc" = """area under\nthe curve"""\n'
    assert load(tmp_path, GOOD + table).metrics == {"eval auc": "area under the curve"}
    for wrong in ("[tool.fedcore.metrics]\nauc = 3\n", 'metrics = ["auc"]\n', '[tool.fedcore.metrics]\nauc = " "\n'):
        with raises(AppError, check="metric-meanings"):
            load(tmp_path, GOOD + wrong)


def test_an_unknown_setting_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownKey, match="'field-bits'"):
        load(tmp_path, GOOD.replace("field-bits", "field-bit"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("field-bits = 21", "field-bits = 20", {"match": "field-bits.*auto.*20"}),
        ('clientapp = "b:app"', 'clientapp = "b.app"', {"match": "clientapp"}),
        ("[tool.flwr.app", "[tool.other", {"check": "not-an-app", "match": r"\[tool\.flwr\.app\]"}),
        ("lr = 0.1", "lr = [1]", {"match": "'lr'"}),
        ("lr = 0.1", "lr = ", {"check": "not-toml"}),
    ],
)
def test_bad_files_say_what_is_wrong(tmp_path: Path, old: str, new: str, message: dict[str, str]) -> None:
    with raises((AppError, ConfigurationError), **message):
        load(tmp_path, GOOD.replace(old, new))


def test_no_pyproject(tmp_path: Path) -> None:
    with raises(AppError, check="not-an-app"):
        FlowerApp.load(tmp_path)


def test_a_library_that_is_not_installed_is_no_missing_module_of_the_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "absentlib_app").mkdir()
    (tmp_path / "absentlib_app" / "server_app.py").write_text("import absentlib\n", encoding="utf-8")
    with pytest.raises(ModuleNotFoundError) as error:
        load_object(tmp_path, "absentlib_app.server_app:app", object)
    assert error.value.name == "absentlib"
    with raises(AppError):
        load_object(tmp_path, "absentlib_app.client_app:app", object)
