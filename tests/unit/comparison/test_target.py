"""When a run first had a model that is good enough."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.raising import raises
from support.tiny import TINY
from typer.testing import CliRunner

from fedcore.cli.main import app
from fedcore.comparison.results import CurvePoint
from fedcore.comparison.target import Target, line_of
from fedcore.errors import ConfigurationError

SIMULATE = ("simulate", str(TINY), "--engine", "inline", "--clients", "3", "--run-config", "num-server-rounds=3")


def curve(*values: float, name: str = "eval_acc") -> list[CurvePoint]:
    return [
        CurvePoint(round=number, seconds=2.0 * number, simulated_seconds=10.0 * number, metrics={name: value})
        for number, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("text", "metric", "value", "better"),
    [
        ("eval_acc:0.9", "eval_acc", 0.9, "max"),
        ("eval_loss:0.3", "eval_loss", 0.3, "min"),
        ("rmse:4:min", "rmse", 4.0, "min"),
        ("a:b:1e-3:max", "a:b", 1e-3, "max"),
    ],
)
def test_a_target_is_read(text: str, metric: str, value: float, better: str) -> None:
    found = Target.parse(text)
    assert (found.metric, found.value, found.better) == (metric, value, better)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0.9", {"check": "target-form"}),
        (":0.9", {"check": "target-form"}),
        ("eval_acc:high", {"check": "target-form"}),
        ("eval_acc:nan", {"check": "target-form"}),
        ("figure:4", {"check": "no-direction", "match": "figure:4:max"}),
    ],
)
def test_what_is_no_target_is_refused(text: str, says: dict[str, str]) -> None:
    with raises(ConfigurationError, **says):
        Target.parse(text)


def test_the_first_model_that_is_good_enough_counts() -> None:
    """The value itself is enough, and a later model that is worse changes nothing."""
    found = Target.parse("eval_acc:0.8").reached(curve(0.1, 0.8, 0.7, 0.9))
    assert found is not None
    assert (found.round, found.value, found.seconds, found.virtual_seconds) == (1, 0.8, 2.0, 10.0)
    lowest = Target.parse("eval_loss:0.3").reached(curve(0.9, 0.4, 0.2, name="eval_loss"))
    assert lowest is not None
    assert lowest.round == 2


def test_one_that_is_not_reached_says_how_near_it_came() -> None:
    target = Target.parse("eval_acc:0.95")
    told = target.progress(curve(0.1, 0.9, 0.7))
    assert (told["reached"], told["best"]) == (None, 0.9)
    assert line_of(told, ["eval_acc"]) == "eval_acc ≥ 0.95: not reached, the best was 0.9000"
    missing = Target.parse("accuracy:0.9").progress(curve(0.1))
    assert line_of(missing, ["eval_acc"]).endswith("no evaluation reports 'accuracy'; there is eval_acc")


def test_the_command_tells_when(tmp_path: Path) -> None:
    """The target lies between the losses of rounds 1 and 2, so that round 2 is the first below it."""
    report = tmp_path / "report"
    words = [*SIMULATE, "--json"]
    plain = json.loads(CliRunner().invoke(app, [*words, "--report", str(report)]).stdout)
    assert "target" not in plain
    document = json.loads((report / "report.json").read_text())
    assert document["target"] is None
    losses = {point["round"]: point["metrics"]["eval_loss"] for point in document["runs"][0]["curve"]}
    between = (losses[1] + losses[2]) / 2
    words += ["--report", str(report), "--force", "--target", f"eval_loss:{between}"]
    summary = json.loads(CliRunner().invoke(app, words).stdout)["target"]
    assert summary["reached"]["round"] == 2
    document = json.loads((report / "report.json").read_text())
    assert document["judged_by"] == {"name": "eval_loss", "better": "min"}
    (summary,) = document["summary"]
    assert (summary["to_target"]["reached"], summary["to_target"]["round"]["mean"]) == (1, 2.0)
    assert "round of eval_loss ≤" in (report / "report.md").read_text()


def test_a_metric_that_the_app_has_not_is_refused_before_anything_trains() -> None:
    digits = Path(__file__).parents[3] / "examples" / "digits"
    for target in ("acc:0.9", "auc:0.9:max", "train_loss:1:min", "clients/acc:0.9"):
        done = CliRunner().invoke(app, ["simulate", str(digits), "--clients", "3", "--target", target])
        assert done.exit_code == ConfigurationError.exit_code
        assert "there is eval_acc, eval_loss" in done.stderr
        assert "round" not in done.stderr


@pytest.mark.parametrize("target", ["acc", "acc:", ":0.9", "acc:many", "length:3"])
def test_a_target_that_is_none_is_refused_before_anything_trains(target: str) -> None:
    done = CliRunner().invoke(app, [*SIMULATE, "--target", target])
    assert done.exit_code == ConfigurationError.exit_code
    assert "round" not in done.stderr


def test_of_an_app_that_does_not_say_what_it_reports_it_is_told_after_a_round() -> None:
    done = CliRunner().invoke(app, [*SIMULATE, "--target", "acc:0.9"])
    assert done.exit_code == 0, done.output
    assert "no evaluation has reported 'acc' so far; there is eval_loss" in done.stderr
    assert "so far" not in CliRunner().invoke(app, [*SIMULATE, "--target", "eval_loss:0.9"]).stderr


def test_over_several_seeds_it_is_a_column() -> None:
    """A mean over those that reached it would flatter those that did not."""
    shown = CliRunner().invoke(app, [*SIMULATE, "--seeds", "1,2", "--json", "--target", "eval_loss:1e9"])
    (row,) = json.loads(shown.stdout)["table"]
    assert (row["target"]["reached"], row["target"]["runs"]) == (2, 2)
    never = CliRunner().invoke(app, [*SIMULATE, "--seeds", "1,2", "--target", "eval_loss:-1"])
    assert "reached by 0 of 2" in " ".join(never.stdout.split())
