"""Generated apps pass the tools that people run over code, and their own test."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedcore.cli import app as command
from fedcore.templates.choices import TEMPLATES
from fedcore.templates.examples import breast_cancer_csv


@pytest.fixture(scope="module")
def apps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("apps")
    csv = folder / "cancer.csv"
    csv.write_text(breast_cancer_csv())
    asked = {name: ("--template", name) for name in TEMPLATES}
    asked["regression"] = ("--csv", str(csv), "--target", "mean area")
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
