"""`fedcore new --from`: what is found in a script that is only read, and what is left for a person to decide."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedcore.cli.main import app as command

SCRIPTS = Path(__file__).parents[2] / "support" / "scripts"


@pytest.fixture
def adopt(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def adopt(script, name="mine"):
        path = script
        if isinstance(script, str):
            path = tmp_path / "train.py"
            path.write_text(script)
        return CliRunner().invoke(command, ["new", name, "--from", str(path), "--json"])

    return adopt


def made(result):
    assert result.exit_code == 0, result.output
    for path in Path("mine").rglob("*.py"):
        compile(path.read_text(), path, "exec")
    return json.loads(result.stdout)


def code(name):
    return Path("mine/mine_app", name).read_text()


def test_a_plain_script_without_a_main(adopt):
    found = made(adopt((SCRIPTS / "mnist.py.txt").read_text()))
    assert found["lines"] == {"script": 31, "changed": 0, "used": 15, "replaced": 16, "to_decide": 2}
    assert "from mine_app.script import Net" in code("model.py")
    assert 'train_set = datasets.MNIST("../data", train=True, download=True, transform=transform)  # line 23' in code(
        "data.py"
    )
    assert "torch.optim.Adadelta(model.parameters(), lr=lr)" in code("app.py")
    assert "optimizer.step()" not in code("script.py")
    assert "num-server-rounds = 5" in Path("mine/pyproject.toml").read_text()
    assert "batch-size = 64" in Path("mine/pyproject.toml").read_text()


def test_a_trainer_class_with_an_argument_parser(adopt):
    found = made(adopt((SCRIPTS / "trainer.py.txt").read_text()))
    assert "return MLP(width=48)" in code("model.py")
    assert "return train_set, Digits(False)" in code("data.py")
    assert "torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)" in code("loop.py")
    assert "lr = 0.05" in Path("mine/pyproject.toml").read_text()
    assert any("StepLR" in one and "line 52" in one for one in found["found"])
    assert "go_on(scheduler, steps=first_epoch)" in code("loop.py")


def test_everything_under_main(adopt):
    made(adopt((SCRIPTS / "guarded.py.txt").read_text()))
    assert "losses.squared_error" in code("app.py")
    assert "weight_decay=0.0001" in code("app.py")
    assert "x = torch.tensor(x, dtype=torch.float32)  # line 7" in code("data.py")
    assert "row % 5 != 4" in code("data.py")


def test_nothing_of_the_script_is_run(adopt, tmp_path):
    mark = tmp_path / "ran"
    run = f"open({str(mark)!r}, 'w')\n"
    script = f"{run}import torch\nmodel = torch.nn.Linear(2, 1)\ntorch.optim.SGD(model.parameters(), lr=0.1)\n"
    made(adopt(script))
    assert not mark.exists()
    assert "open" not in code("script.py")


def test_what_cannot_be_followed_is_a_todo_with_its_line(adopt):
    script = (
        "import sys, torch\n"
        "from torch.utils.data import DataLoader\n"
        "def main(width, rows):\n"
        "    model = torch.nn.Linear(width, 1)\n"
        "    loader = DataLoader(rows, batch_size=4)\n"
        "    torch.optim.Adam(model.parameters(), lr=float(sys.argv[1]))\n"
    )
    found = made(adopt(script))
    assert "# TODO: say what width is in train.py, line 4" in code("model.py")
    assert "# TODO: say what rows is in train.py, line 5" in code("data.py")
    assert "raise NotImplementedError" in code("model.py")
    assert any("choose lr, which line 6 does not say" in one for one in found["todo"])


def test_options_of_a_command_line_are_never_asked_for(adopt):
    script = (
        "import argparse, torch\n"
        "args = argparse.ArgumentParser().parse_args()\n"
        "model = torch.nn.Linear(args.width, 1)\n"
        "torch.optim.SGD(model.parameters(), lr=0.1)\n"
    )
    made(adopt(script))
    assert "say what args.width is" in code("model.py")
    assert "parse_args" not in code("model.py") + code("script.py")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("print('hello')\n", "has no nn.Module and no optimizer of torch"),
        ("def broken(:\n", "is no Python, line 1"),
        (Path("nowhere.py"), "there is no file nowhere.py"),
    ],
)
def test_scripts_that_no_app_comes_of_are_refused(adopt, script, said):
    result = adopt(script)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert not Path("mine").exists()


def test_a_template_does_not_go_with_a_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command, ["new", "mine", "--from", "train.py", "--csv", "a.csv"])
    assert "--from reads a script, and --csv does not go with it" in result.stderr
