"""Generated apps pass the tools that people run over code, and their own test."""

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from fedcore.cli.main import app as command
from fedcore.cli.new.choices import TEMPLATES
from fedcore.cli.new.examples import breast_cancer_csv
from fedcore.errors import DataError
from fedcore.flower.app import FlowerApp
from fedcore.flower.apps.engine_app import LocalJob
from fedcore.flower.apps.supervised import SupervisedApp
from fedcore.flower.loading import load_object
from fedcore.flower.memory_app import fresh_modules
from fedcore.flower.node.config import NodeConfig


@pytest.fixture(scope="module")
def apps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("apps")
    csv = folder / "cancer.csv"
    csv.write_text(breast_cancer_csv())
    asked = {name: ("--template", name) for name in TEMPLATES}
    asked["regression"] = ("--csv", str(csv), "--target", "mean area")
    asked["trees"] = ("--csv", str(csv), "--target", "diagnosis", "--model", "trees")
    script = tmp_path_factory.mktemp("scripts") / "train.py"
    script.write_text((Path(__file__).parents[2] / "support" / "scripts" / "trainer.py.txt").read_text())
    asked["script"] = ("--from", str(script))
    for name, words in asked.items():
        result = CliRunner().invoke(command, ["new", str(folder / f"an-{name}"), *words])
        assert result.exit_code == 0, result.output
    return folder


def run(folder: Path, *words: str) -> str:
    done = subprocess.run([sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_ruff_finds_nothing_to_change(apps):
    run(apps, "ruff", "check", "--no-cache", ".")
    run(apps, "ruff", "format", "--no-cache", "--check", ".")


def test_the_test_of_an_app_passes(apps):
    assert "1 passed" in run(apps / "an-survival", "pytest", "-q", "-p", "no:cacheprovider")


@pytest.mark.parametrize(
    ("name", "key", "example"),
    [
        ("tabular", "csv", ".example-csv"),
        ("survival", "csv", ".example-csv"),
        ("text", "csv", "messages.csv"),
        ("image", "images", ""),
    ],
)
def test_a_site_that_wrote_nothing_but_where_its_data_are_has_all_that_training_needs(
    apps: Path, tmp_path: Path, name: str, key: str, example: str
) -> None:
    """As one that joined with its own key: it has no partition, and orders its examples all the same."""
    app = FlowerApp.load(apps / f"an-{name}")
    own = app.folder / example
    if example == ".example-csv":
        own = app.folder / own.read_text().strip()
    if key == "images":
        own = tmp_path
        for digit in map(str, range(10)):
            (own / digit).mkdir()
            for number in range(5):
                Image.new("L", (8, 8), color=number).save(own / digit / f"{number}.png")
    with fresh_modules(app):
        client = load_object(app.folder, app.clientapp, SupervisedApp)
        told = {"server-round": 1}
        plan = client.plan(LocalJob(config=app.run_config, node=NodeConfig({key: str(own)}), message=told, client=2))
        with pytest.raises(DataError):
            client.plan(LocalJob(config=app.run_config, node=NodeConfig(), message=told, client=2))
    assert len(plan.data) > 10
