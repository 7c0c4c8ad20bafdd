"""Several simulations from one command: which runs there are, where each puts what it leaves, and the table of all."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from pathlib import Path

import pytest
from support.raising import raises
from support.tiny import TINY
from typer.testing import CliRunner

from fedcore.cli.main import app
from fedcore.cli.simulation_options import SweepPoint
from fedcore.cli.sweep import lines_of, row_of, sweep_points
from fedcore.errors import ConfigurationError

CONFIG = {"lr": 0.1, "seed": 7, "num-server-rounds": 2}
COMMAND = ("simulate", str(TINY), "--engine", "inline", "--clients", "3")


def names(seeds: str, *vary: str, config: dict[str, object] = CONFIG) -> list[str]:
    return [point.name for point in sweep_points(seeds, vary, seed=0, run_config=config, settings={"clip-norm": 1.0})]


def test_all_values_meet_all_seeds() -> None:
    assert names("1,2", "lr=0.1,0.2") == ["lr=0.1,seed=1", "lr=0.1,seed=2", "lr=0.2,seed=1", "lr=0.2,seed=2"]
    assert names("2") == ["seed=7", "seed=8"]
    assert names("", "clip-norm=1.0,2.0", config={"lr": 0.1}) == ["clip-norm=1.0,seed=0", "clip-norm=2.0,seed=0"]


@pytest.mark.parametrize(
    ("seeds", "vary", "says"),
    [
        ("1,1", [], {"match": r"--seeds.*'1,1'"}),
        ("", ["rate=0.1,0.2"], {"match": r"'rate'.*--vary"}),
        ("", ["seed=1,2"], {"match": r"--vary.*seed.*--seeds"}),
        ("", ["lr=0.1,0.1"], {"match": r"--vary.*lr=0\.1,0\.1"}),
        ("", ["lr="], {"match": "lr="}),
    ],
)
def test_what_cannot_be_meant_is_refused(seeds: str, vary: list[str], says: dict[str, str]) -> None:
    with raises(ConfigurationError, **says):
        names(seeds, *vary)


def test_each_run_has_a_folder_of_its_own() -> None:
    point = SweepPoint(seed=2, values={"path": "a/b"})
    assert point.path(Path("out/m.safetensors"), folder=False) == Path("out/path=a_b,seed=2/m.safetensors")
    assert point.path(Path("state"), folder=True) == Path("state/path=a_b,seed=2")
    assert point.path(None, folder=True) is None


def test_a_row_is_the_mean_and_the_spread_over_seeds() -> None:
    summaries = [
        {"metrics": {"acc": 0.5, "list": [1.0]}, "virtual_seconds": None},
        {"metrics": {"acc": 0.7}, "virtual_seconds": None},
    ]
    row = row_of({"lr": 0.1}, summaries, [1, 2])
    assert row["metrics"] == {"acc": {"mean": pytest.approx(0.6), "sd": pytest.approx(0.02**0.5), "n": 2}}
    assert list(lines_of([row])) == [("lr", "seeds", "acc"), ("0.1", "2", "0.6000 ± 0.1414")]


def test_the_command_carries_out_every_run_and_goes_on_with_them(tmp_path: Path) -> None:
    places = ["--state", str(tmp_path / "state"), "--out", str(tmp_path / "m.safetensors")]
    words = [*COMMAND, "--seeds", "1,2", "--vary", "num-server-rounds=1", *places]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [(run["values"], run["seed"], run["rounds"]) for run in found["runs"]] == [
        ({"num-server-rounds": 1}, seed, 1) for seed in (1, 2)
    ]
    assert [row["seeds"] for row in found["table"]] == [[1, 2]]
    models = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.safetensors"))
    kept = [name for name in models if not name.startswith("state/")]
    assert kept == [f"num-server-rounds=1,seed={seed}/m.safetensors" for seed in (1, 2)]
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 2, "models that are there are not replaced"
    taken_up = CliRunner().invoke(app, [*words, "--force"])
    assert taken_up.exit_code == 0, taken_up.output
    assert "num-server-rounds" in taken_up.stdout


def test_nothing_runs_where_one_of_several_cannot(tmp_path: Path) -> None:
    there = tmp_path / "seed=2" / "m.safetensors"
    there.parent.mkdir()
    there.touch()
    done = CliRunner().invoke(app, [*COMMAND, "--seeds", "1,2", "--out", str(tmp_path / "m.safetensors")])
    assert done.exit_code == 2
    assert not (tmp_path / "seed=1").exists()


def test_one_that_fails_leaves_the_table_of_those_before(tmp_path: Path) -> None:
    best = ["--set", "best-model=eval_loss:min", "--best", str(tmp_path / "new" / "best.safetensors")]
    words = [*COMMAND, "--run-config", "num-server-rounds=1", "--vary", "groups=1,2", "--json", *best]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "groups = 2 needs" in done.stderr
    assert [row["values"] for row in json.loads(done.stdout)["table"]] == [{"groups": 1}]
    assert [path.parent.parent.name for path in tmp_path.rglob("best.safetensors")] == ["new"]


def test_what_a_scheduler_ends_leaves_no_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object, **__: object) -> None:
        assert list(temporary.iterdir())
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("fedcore.simulation.run.run_server_app", killed)
    before = signal.getsignal(signal.SIGTERM)
    with tempfile.TemporaryDirectory() as name:  # tmp_path is too long for a socket
        temporary = Path(name)
        monkeypatch.setattr(tempfile, "tempdir", name)
        done = CliRunner().invoke(app, [*COMMAND, "--state", str(tmp_path / "state")])
        assert not list(temporary.iterdir())
    assert done.exit_code == 130, done.output
    assert str(tmp_path / "state") in done.stderr
    assert signal.getsignal(signal.SIGTERM) == before
