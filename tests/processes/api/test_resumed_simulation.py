"""A simulation that is killed goes on, and ends as if nothing had happened."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from support.commands import forked, killed_when

APP = Path(__file__).parents[2] / "apps" / "drawing"
TINY = APP.parent / "tiny"


def words(folder: Path, name: str, *more: str) -> list[str | Path]:
    options = [
        "--clients",
        "8",
        "--engine",
        "inline",
        "--drop",
        "0.2",
        "--seed",
        "3",
        "--devices",
        "time=lognormal:1,there=0.8:20",
    ]
    kept = ["--state", folder / f"{name}-state", "--out", folder / f"{name}.safetensors", "--force", "--json"]
    return ["simulate", APP, *options, "--set", 'aggregation="plain"', *kept, *more]


def killed_after(steps: int, folder: Path, name: str) -> None:
    """Start a command, and kill it as soon as so many answers are kept."""
    kept = folder / f"{name}-state" / "steps" / f"{steps}.json"
    killed_when(kept.exists, *words(folder, name))
    assert kept.exists(), "it ended before"


def killed_after_an_exchange(folder: Path, name: str) -> None:
    """As `killed_after`, as soon as more is kept than who is there."""
    steps = folder / f"{name}-state" / "steps"

    def exchanged() -> bool:
        return any(json.loads(kept.read_text())["request"]["op"] != "nodes" for kept in steps.glob("*.json"))

    killed_when(exchanged, *words(folder, name))
    assert exchanged(), "it ended before"


def finished(folder: Path, name: str) -> dict[str, object]:
    done = forked(*words(folder, name))
    assert done.returncode == 0, done.stderr
    summary: dict[str, object] = json.loads(done.stdout)
    return summary


def test_killed_again_and_again_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    calm = finished(tmp_path, "calm")
    for steps in (1, 7, 8, 14):
        killed_after(steps, tmp_path, "killed")
    summary = finished(tmp_path, "killed")
    ours, theirs = (load_file(tmp_path / f"{name}.safetensors") for name in ("killed", "calm"))
    assert ours["weight"].tobytes() == theirs["weight"].tobytes()
    same = ("rounds", "metrics", "samples", "dropouts", "virtual_seconds", "results", "bytes_up_per_client")
    assert {name: summary[name] for name in same} == {name: calm[name] for name in same}
    assert calm["dropouts"], "the seed has to drop somebody, or nothing is shown of it"


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--run-config", "num-server-rounds=7"], "run-config"),
        (["--set", "quorum=2"], "settings"),
        (["--clients", "9"], "clients"),
        (["--devices", "time=lognormal:2"], "devices"),
    ],
)
def test_another_run_is_refused_by_what_differs(tmp_path: Path, more: list[str], named: str) -> None:
    killed_after_an_exchange(tmp_path, "one")
    refused = forked(*words(tmp_path, "one", *more))
    assert refused.returncode != 0
    assert re.search(rf"--state.*\b{re.escape(named)}\b", refused.stderr)


def test_an_app_that_does_not_repeat_itself_is_told_why(tmp_path: Path) -> None:
    killed_after(4, tmp_path, "drawn")
    folder = tmp_path / "drawn-state" / "steps"
    for step in (json_file for json_file in folder.glob("*.json")):
        kept = json.loads(step.read_text())
        if kept["request"]["op"] == "plain-exchange":
            kept["request"]["questions"][0]["content"] = "0" * 64
            step.write_text(json.dumps(kept))
    refused = forked(*words(tmp_path, "drawn"))
    assert refused.returncode != 0
    assert "questions" in refused.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["--engine", "process", "--workers", "2", "--clients", "8", "--drop", "0.2", "--aggregation", "plain"],
        ["--engine", "inline", "--clients", "12", "--set", "groups=2"],
    ],
    ids=["process", "groups"],
)
def test_a_pool_and_groups_go_on_as_well(tmp_path: Path, options: list[str]) -> None:
    def command(name: str) -> list[str | Path]:
        return ["simulate", TINY, *options, "--seed", "3", "--state", tmp_path / name, "--json"]

    killed_when((tmp_path / "killed" / "steps" / "2.json").exists, *command("killed"))
    calm, killed = (json.loads(forked(*command(name)).stdout) for name in ("calm", "killed"))
    assert killed["metrics"] == pytest.approx(calm["metrics"], rel=1e-3)
    same = ("status", "rounds", "samples", "dropouts", "bytes_up_per_client")
    assert {name: killed[name] for name in same} == {name: calm[name] for name in same}
