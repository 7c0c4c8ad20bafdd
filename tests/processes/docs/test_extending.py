"""Packages from outside, installed by pip and used by the documented commands, without an edit of fedcore."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXTENSIONS = ROOT / "examples" / "extensions"
DIGITS = ROOT / "examples" / "digits"
QUICK = "num-server-rounds=2 local-epochs=1"
MEDIAN = """
from flwr.serverapp.strategy import FedMedian

class OutsideMedian(FedMedian):
    mean_only = True
"""
BROKEN = "import a_package_that_is_not_there\n"


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment that sees ours, with packages of its own."""

    folder: Path

    def run(self, *words: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Run `fedcore` to its end, in the environment's folder."""
        command = [self.folder / "bin" / "python", "-m", "fedcore", *words]
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        environment |= {"FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        process = subprocess.run(
            [*map(str, command)], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert process.returncode == status, process.stdout + process.stderr
        return process

    def install(self, *folders: Path) -> None:
        """By pip, as it is documented, but without an index."""
        options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
        python = ["--python", str(self.folder / "bin" / "python")]
        subprocess.run([sys.executable, "-m", "pip", *python, "install", *options, *map(str, folders)], check=True)


def package(folder: Path, module: str, kind: str, name: str, attribute: str, source: str) -> Path:
    """A package with one module and one entry point."""
    folder.mkdir()
    (folder / f"{module}.py").write_text(source)
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "{module.replace("_", "-")}"\nversion = "0.3"\n'
        f'[project.entry-points."fedcore.{kind}"]\n{name} = "{module}:{attribute}"\n'
        f'[tool.setuptools]\npy-modules = ["{module}"]\n'
        '[build-system]\nrequires = ["setuptools>=77"]\nbuild-backend = "setuptools.build_meta"\n'
    )
    return folder


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder, sources = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("sources")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = folder / "lib" / Path(sysconfig.get_path("purelib")).relative_to(Path(sys.prefix) / "lib")
    (packages / "ours.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    made = Environment(folder)
    copies = []
    for name in ("fedavg_decay", "channels_last", "first_site", "csv_tracker"):
        copies.append(sources / name)
        copies[-1].mkdir()
        for file in (EXTENSIONS / name).glob("*.*"):
            (copies[-1] / file.name).write_bytes(file.read_bytes())
    made.install(
        *copies,
        package(sources / "median", "outside_median", "strategies", "outside-median", "OutsideMedian", MEDIAN),
        package(sources / "broken", "outside_broken", "modes", "outside-broken", "Broken", BROKEN),
        package(sources / "shadow", "outside_shadow", "trackers", "wandb", "Shadow", ""),
    )
    return made


def test_a_strategy_and_a_tracker(outside: Environment, tmp_path: Path) -> None:
    config = f"{QUICK} strategy=fedavg-decay server-lr=1.0"
    track = f"csv:{tmp_path / 'track'}"
    printed = outside.run("simulate", DIGITS, "--clients", "3", "--run-config", config, "--track", track, "--json")
    assert json.loads(printed.stdout)["status"] == "finished"
    (file,) = (tmp_path / "track").iterdir()
    rows = list(csv.reader(file.read_text().splitlines()))
    assert {row[0] for row in rows if row[1] == "evaluate/eval_acc"} == {"1", "2"}
    assert rows[-1][1:] == ["status", "finished"]


def test_a_mode_beside_a_federation_with_the_strategy(outside: Environment, tmp_path: Path) -> None:
    """The federation is real processes in the sandbox: its ServerApp imports the strategy."""
    outside.run(
        "compare", DIGITS, "--modes", "first-site,local,federated[strategy=fedavg-decay]", "--clients", "2",
        "--seeds", "1", "--run-config", QUICK, "--out", tmp_path / "out", "--track", f"csv:{tmp_path / 'track'}",
    )  # fmt: skip
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    runs = {run["kind"]: run for run in report["runs"]}
    assert {kind: run["status"] for kind, run in runs.items()} == dict.fromkeys(
        ("first-site", "local", "federated"), "finished"
    )
    titles = {mode["kind"]: mode["title"] for mode in report["modes"]}
    assert titles["first-site"] == "the model of the first site, for everybody"
    folder = tmp_path / "out" / "runs"
    first, alone = (
        next(folder.glob(f"*-{kind}-*")) / "client-1" / "model.safetensors" for kind in ("first-site", "local")
    )
    assert first.read_bytes() == alone.read_bytes()
    assert len(list((tmp_path / "track").iterdir())) == 3
    # Read where the mode is not installed.
    words = ["compare", "--from", tmp_path / "out" / "report.json", "--out", tmp_path / "again"]
    subprocess.run([sys.executable, "-m", "fedcore", *words], check=True, capture_output=True)
    assert "first-site" in (tmp_path / "again" / "report.md").read_text()


def test_help_and_completion_list_them(outside: Environment) -> None:
    assert "outside-broken" in outside.run("compare", "--list-modes").stdout
    assert "csv" in outside.run("simulate", "--help").stdout
    assert "channels-last" in outside.run("client", "--help").stdout


def test_a_secure_run_refuses_a_median_from_outside(outside: Environment) -> None:
    config = f"{QUICK} strategy=outside-median"
    refused = outside.run("simulate", DIGITS, "--clients", "3", "--run-config", config, status=2)
    assert "OutsideMedian" in refused.stderr
    outside.run("simulate", DIGITS, "--clients", "3", "--run-config", config, "--set", "aggregation=plain")
    assert "OutsideMedian" in outside.run("check", DIGITS, "--run-config", config, status=2).stdout


def test_a_broken_one_and_one_that_shadows_fail_their_own_commands(outside: Environment) -> None:
    broken = outside.run("compare", DIGITS, "--modes", "outside-broken,local", status=2).stderr
    assert "outside-broken 0.3" in broken
    assert "outside_broken:Broken" in broken
    shadow = outside.run("simulate", DIGITS, "--track", "wandb", status=2).stderr
    assert "outside-shadow 0.3" in shadow
    assert "fedcore itself" in shadow


def test_an_engine_at_a_client(outside: Environment, tmp_path: Path) -> None:
    """A client without the package stops at its start, and names the engine."""
    outside.run("provision", tmp_path / "fed", "--clients", "2")
    kit = ["client", "--kit", tmp_path / "fed" / "clients" / "client-1", "--app", DIGITS]
    refused = subprocess.run(
        [sys.executable, "-m", "fedcore", *kit, "--engine", "channels-last"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert refused.returncode == 2
    assert "channels-last" in refused.stderr
    known = outside.run(*kit, "--engine", "channels-last", "--data-dir", tmp_path / "nowhere", status=2)
    assert "channels-last" not in known.stderr
    assert "nowhere" in known.stderr
