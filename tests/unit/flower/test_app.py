from pathlib import Path

import pytest

from fedcore.errors import AppError, ConfigurationError, UnknownKey
from fedcore.flower.app import FlowerApp

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
        with pytest.raises(AppError, match=r"simulation-clients in .tool.fedcore. of .* must be a number from 1 on"):
            load(tmp_path, GOOD + f"simulation-clients = {wrong}\n")


def test_an_unknown_setting_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownKey, match="did you mean 'field-bits'"):
        load(tmp_path, GOOD.replace("field-bits", "field-bit"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("field-bits = 21", "field-bits = 20", "must be one of 8, 10, 12, 16, 21, 32, auto"),
        ('clientapp = "b:app"', 'clientapp = "b.app"', "clientapp = 'module:attribute'"),
        ("[tool.flwr.app", "[tool.other", "no \\[tool.flwr.app\\] table"),
        ("lr = 0.1", "lr = [1]", "must be a bool, int, float or string"),
        ("lr = 0.1", "lr = ", "cannot be read as TOML"),
    ],
)
def test_bad_files_say_what_is_wrong(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises((AppError, ConfigurationError), match=message):
        load(tmp_path, GOOD.replace(old, new))


def test_no_pyproject(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="is not a Flower app"):
        FlowerApp.load(tmp_path)
