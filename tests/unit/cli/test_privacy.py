"""`fedcore privacy`: an app without noise and with it, evaluated without noise, in one table."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedcore.cli.main import app as command

STEADY = Path(__file__).parents[2] / "apps" / "steady"
"""Each client's update has the norm of the run config; each reports its accuracy."""


def privacy(*words):
    small = ("--clients", "4", "--engine", "inline", "--seeds", "1,2")
    return CliRunner().invoke(command, ["privacy", str(STEADY), *small, *words])


def run_config(*words):
    return "--run-config", " ".join(["size=40", "norm=0.25", "accuracy=0.75", "num-server-rounds=2", *words])


def test_each_epsilon_is_kept_and_compared_with_a_run_without_noise() -> None:
    done = privacy("--epsilon", "8", "--epsilon", "2", "--set", "clip-norm=0", *run_config(), "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    without, weak, strong = result["table"]
    assert (without["epsilon"], weak["epsilon"], strong["epsilon"]) == (None, 8, 2)
    assert without["noise_multiplier"] is None
    assert result["metric"] == "accuracy"
    assert weak["clip_norm"] == strong["clip_norm"] == pytest.approx(0.25), "the median norm of an update"
    assert strong["noise_multiplier"] > 3 * weak["noise_multiplier"]
    for row in (weak, strong):
        assert 0.98 * row["epsilon"] < row["epsilon_spent"] <= row["epsilon"]
        assert row["rounds"] == 2, "the noise lasts for all rounds"
        assert row["metric"]["mean"] == pytest.approx(0.75, abs=1e-4), "evaluations have no noise here"
        assert row["metric"]["n"] == 2
        assert row["difference"] == pytest.approx(0, abs=1e-4)


def test_the_table_for_people_and_the_bound_of_the_app() -> None:
    done = privacy("--epsilon", "8", *run_config())
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [words[:2] for words in lines if words and words[0] in ("none", "8")] == [["none", "-"], ["8", "1"]]
    assert "clip-norm=1 dp-epsilon=8 dp-rounds=2" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("--metric", "auc", *run_config()),
        ("--metric", "accuracy", *run_config("fraction-evaluate=0.0")),
        run_config("fraction-evaluate=0.0"),
        ("--epsilon", "0.0001", "--set", "dp-delta=1e-300", *run_config()),
    ],
)
def test_what_cannot_be_compared_is_refused(words) -> None:
    assert privacy(*words).exit_code == 2
