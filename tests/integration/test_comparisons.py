"""`fedcore compare` in real processes: broken off and taken up again, from end to end, and refused."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from pydantic import TypeAdapter
from support.commands import forked
from support.deployment import MARK, PATIENCE, assert_none_left, command_lines, fedcore, wait_until
from support.tiny import TINY

from fedcore.compare.local_federation import FEDCORE, ProcessGroup
from fedcore.compare.results import RunResult
from fedcore.progress import PLAIN_WARNING
from fedcore.state import ModelState

INTERRUPTED = 130
LONG = 600.0
"""Seconds for a whole comparison on a busy machine."""

pytestmark = pytest.mark.timeout(1800)


class Comparison:
    """A `fedcore compare` of the tiny app in the background, and all that it starts: a short run and one at a gate."""

    def __init__(self, group: ProcessGroup, mark: str, folder: Path) -> None:
        self.mark = mark
        self.out = folder / "out"
        self.gate = folder / "gate"
        for log in self._client_logs():  # of a comparison before
            log.unlink()
        words = [*FEDCORE, *self.words()]
        self.process: subprocess.Popen[str] = group.start("compare", words, piped=True)

    def _client_logs(self) -> list[Path]:
        """Of all federations; looked for where they lie, since the server's data folders come and go meanwhile."""
        return list(self.out.glob("federation/*/logs/client-*.log"))

    def _is_at_gate(self) -> bool:
        """Whether a client says so in its log."""
        return any("at the gate" in path.read_text() for path in self._client_logs())

    def words(self) -> list[str | Path]:
        """The command that both began it and takes it up again."""
        sweep = f'gate="","{self.gate}"'
        return ["compare", TINY, "--clients", "2", "--modes", "federated", "--set", sweep, "--out", self.out]

    def wait_for_training(self) -> None:
        """Until the second run's clients are at its gate."""
        wait_until("the second run to train", self._is_at_gate, seconds=LONG)

    def parts(self) -> list[str]:
        """The processes that it has started, by what they are."""
        return sorted(line for line in command_lines(self.mark) if " compare " not in line)


@contextmanager
def background(folder: Path) -> Iterator[ProcessGroup]:
    environment = {"FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1", MARK: mark_of(folder)}
    with ProcessGroup(folder / "logs", environment) as processes:
        yield processes
    assert_none_left(mark_of(folder))


def mark_of(folder: Path) -> str:
    """What tells the processes of a test from others: no path, which user code would be let in to read."""
    return f"of {folder}"


def test_a_comparison_that_is_ended_leaves_no_process_and_goes_on(tmp_path: Path) -> None:
    ended_by(signal.SIGINT, INTERRUPTED, tmp_path)
    (kept,) = (tmp_path / "out").glob("runs/*/result.json")
    before = kept.stat().st_mtime_ns
    comparison = ended_by(signal.SIGKILL, -signal.SIGKILL, tmp_path)
    comparison.gate.touch()
    again = fedcore(*comparison.words(), "--json", seconds=LONG)
    assert again.returncode == 0, again.stderr
    assert f"run 2 of 2: federated, gate={comparison.gate}, seed 0" in again.stderr
    assert "run 1 of 2" not in again.stderr
    assert [run["status"] for run in json.loads(again.stdout)["runs"]] == ["finished", "finished"]
    assert kept.stat().st_mtime_ns == before


def ended_by(number: signal.Signals, status: int, folder: Path) -> Comparison:
    """Begin the comparison or take it up again, end it in its second run, and see its processes go."""
    with background(folder) as group:
        comparison = Comparison(group, mark_of(folder), folder)
        comparison.wait_for_training()
        assert len([part for part in comparison.parts() if "fedcore" in part or "_app" in part]) >= 7, (
            "server, ServerApp, two agents with a rank each, fedcore run"
        )
        comparison.process.send_signal(number)
        assert comparison.process.wait(PATIENCE) == status
        wait_until("all processes to end", lambda: not comparison.parts())
    return comparison


def test_an_app_that_cannot_be_imported_is_not_compared(tmp_path: Path) -> None:
    app = tmp_path / "app"
    (app / "tiny_app").mkdir(parents=True)
    for name in ("pyproject.toml", "tiny_app/__init__.py", "tiny_app/problem.py", "tiny_app/server_app.py"):
        (app / name).write_bytes((TINY / name).read_bytes())
    (app / "tiny_app" / "client_app.py").write_text("import a_module_that_is_not_installed\n")
    done = fedcore(
        "compare", app, "--clients", "2", "--modes", "federated", "--out", tmp_path / "out", "--json", seconds=LONG
    )
    assert done.returncode == 2
    assert (
        "tiny cannot be compared: ModuleNotFoundError: No module named 'a_module_that_is_not_installed'" in done.stderr
    )
    assert 'client_app.py", line 1' in done.stderr, "where to look"
    assert not (tmp_path / "out").exists()


def test_a_comparison_from_end_to_end(tmp_path: Path) -> None:
    digits = Path(__file__).parents[2] / "examples" / "digits"
    out = tmp_path / "out"
    modes = ("federated", "federated-plain", "centralized")
    done = fedcore(
        *("compare", digits, "--clients", "2", "--modes", ",".join(modes), "--out", out),
        *("--run-config", "num-server-rounds=2", "--network", "wan", "--json"),
        seconds=LONG,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((out / "report.json").read_text())
    assert json.loads(done.stdout) == report
    assert report["schema"] == "fedcore/compare/3"
    jsonschema.validate(report, json.loads((files("fedcore.compare.report") / "schema.json").read_text()))
    assert {check["name"]: check["status"] for check in report["fairness"] if check["status"] != "holds"} == {}
    assert [mode["label"] for mode in report["modes"]] == list(modes)
    assert sum(site["training"] for site in report["split"]) == sum(
        sum(site["labels"].values()) for site in report["split"]
    )
    secure, plain, central = TypeAdapter(tuple[RunResult, ...]).validate_python(report["runs"])
    for run in (secure, plain, central):
        assert run.status == "finished"
        assert run.curve[-1].round == 2
        assert 0.2 < (run.accuracy or 0) <= 1
        assert run.simulated_seconds
        assert len(run.sites) == 2
    assert (secure.aggregation, plain.aggregation) == ("secure", "plain")
    assert secure.samples == plain.samples == central.samples > 0
    assert secure.initial_sha256 == plain.initial_sha256 == central.initial_sha256 != ""
    assert abs((secure.accuracy or 0) - (plain.accuracy or 0)) < 0.02
    assert sum(central.bytes_up.values()) == 0 < sum(secure.bytes_up.values())
    assert all(mode in (out / "report.md").read_text() for mode in modes)
    assert "<html" in (out / "report.html").read_text()
    assert PLAIN_WARNING in done.stderr
    for model in out.glob("runs/*/model.safetensors"):
        assert ModelState.open(model)
    merged = forked("compare", "--from", out / "report.json", "--out", tmp_path / "merged", "--json")
    assert merged.returncode == 0, merged.stderr
    assert json.loads(merged.stdout)["runs"] == report["runs"]


def test_a_private_run_from_end_to_end(tmp_path: Path) -> None:
    """Real processes: epsilon after every exchange, and a budget that ends the run with a model."""
    app = Path(__file__).parents[1] / "apps" / "steady"
    out = tmp_path / "out"
    done = fedcore(
        *("compare", app, "--clients", "2", "--modes", "federated-dp", "--out", out, "--json"),
        *("--run-config", "num-server-rounds=3", "--set", "dp-epsilon=6", "--set", "dp-rounds=2"),
        seconds=LONG,
    )
    assert done.returncode == 0, done.stderr
    (values,) = json.loads(done.stdout)["runs"]
    result = TypeAdapter(RunResult).validate_python(values)
    assert (result.status, result.curve[-1].round, result.samples) == ("finished", 2, 0)
    assert result.reason.startswith("privacy-budget: epsilon 5.9")
    assert result.privacy is not None
    assert result.epsilon_spent is not None
    assert 5.9 < result.epsilon_spent <= result.privacy.epsilon_budget == 6
    ledgers = list((out / "federation").glob("**/clients/*/**/ledger.jsonl"))
    assert len(ledgers) == 2
    for ledger in ledgers:
        events = [json.loads(line)["event"] for line in ledger.read_text().splitlines()]
        assert events.count("spent") == 2
    (model,) = out.glob("runs/*/model.safetensors")
    assert np.asarray(ModelState.open(model)["weight"]).std() > 0
