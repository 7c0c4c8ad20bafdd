"""The commands as a person and a script use them: help, JSON, Ctrl-C, and a run whose updates are readable."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from support.deployment import MARK, Deployment, assert_none_left, command_lines, fedcore, wait_until
from support.tiny import TINY

from fedcore.compare.processes import FEDCORE, ProcessGroup
from fedcore.compare.results import RunResult
from fedcore.progress import PLAIN_WARNING
from fedcore.state import ModelState

COMMANDS = ("provision", "server", "client", "run", "simulate", "compare")
INTERRUPTED = 130

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def readable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Two clients whose owners allow plain aggregation."""
    with Deployment.open(tmp_path_factory.mktemp("plain"), clients=2, allow_plain=True) as deployment:
        deployment.start_server()
        deployment.start_clients()
        yield deployment


def test_help_lists_the_commands_in_the_order_of_their_use() -> None:
    done = fedcore("--help")
    assert done.returncode == 0
    places = [done.stdout.index(f"│ {name} ") for name in COMMANDS]
    assert places == sorted(places)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_shows_an_example(command: str) -> None:
    done = fedcore(command, "--help")
    assert done.returncode == 0
    _, _, example = done.stdout.partition("Example")
    assert f"fedcore {command} " in example


def test_json_of_the_commands_without_a_server(tmp_path: Path) -> None:
    made = json.loads(fedcore("provision", tmp_path / "fed", "--clients", "3", "--port", "9443", "--json").stdout)
    assert made == {"folder": str(tmp_path / "fed"), "federation": "federation", "clients": 3, "port": 9443}
    model = tmp_path / "model.safetensors"
    done = json.loads(fedcore("simulate", TINY, "--clients", "3", "--out", model, "--json").stdout)
    assert done["status"] == "finished"
    assert done["aggregation"] == "secure"
    assert "weight" in ModelState.open(model)


@pytest.mark.slow
def test_export_says_that_a_client_has_no_model_of_its_own(readable: Deployment, tmp_path: Path) -> None:
    done = fedcore("client", "export", "--kit", readable.kit("client-1"), "--out", tmp_path / "model")
    assert done.returncode == 2
    assert done.stderr.startswith("fedcore client export: ")
    assert len(done.stderr.splitlines()) == 1


def test_events_and_summary_of_a_plain_run_say_plain(readable: Deployment) -> None:
    said = len(readable.log("client-1"))
    done = readable.submit(settings={"aggregation": "plain"}).finish()
    assert done.status == 0, done.stderr
    assert done.summary["aggregation"] == "plain"
    assert done.summary["model"] == str(done.model)
    for kind in ("started", "exchange", "exchange-done"):
        assert {data["aggregation"] for data in done.of(kind)} == {"plain"}
    lines = [line for line in readable.log("client-1")[said:].splitlines() if "round" in line]
    assert lines
    assert all("[plain: the server can read this]" in line for line in lines)


@pytest.mark.slow
def test_a_person_is_told_of_a_plain_run_before_and_after_it(readable: Deployment, tmp_path: Path) -> None:
    command = ("run", TINY, "--operator", readable.federation.operator, "--out", tmp_path / "m.safetensors")
    plain = fedcore(*command, "--set", "aggregation=plain")
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout.count(PLAIN_WARNING) == 2
    secure = fedcore(*command)
    assert secure.returncode == 0, secure.stderr
    assert "plain" not in secure.stdout
    assert "2 of 2 clients joined: client-1, client-2" in secure.stdout
    assert f"model saved to {tmp_path}/m.safetensors" in secure.stdout


@pytest.mark.slow
def test_ctrl_c_on_a_run_cancels_it_and_the_next_one_works(readable: Deployment) -> None:
    run = readable.submit(pause=20.0)
    run.wait_for_training()
    run.process.send_signal(signal.SIGINT)
    done = run.finish(20.0)
    assert done.status == INTERRUPTED
    assert "cancelling run" in done.stderr
    assert not done.model.exists()
    # The server is free at once, and so are the clients although their app sleeps.
    again = readable.submit().finish(40.0)
    assert again.status == 0, again.stderr
    assert again.of("exchange-done")[0]["survivors"] == ["client-1", "client-2"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, 0)])
def test_a_client_that_is_stopped_takes_its_ranks_along(
    readable: Deployment, number: signal.Signals, status: int
) -> None:
    (rank,) = readable.ranks("client-2")
    assert readable.stop("client-2", number) == status
    wait_until("the rank to end", lambda: not rank.is_running())
    readable.start_clients("client-2")
    done = readable.submit(settings={"min-clients": 2}).finish()
    assert done.status == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_that_is_stopped_ends_in_good_order(readable: Deployment, number: signal.Signals) -> None:
    said = len(readable.log("server"))
    run = readable.submit(pause=20.0)
    run.wait_for_training()
    assert readable.stop("server", number) == 0
    assert [line for line in command_lines(readable.mark) if "appworker" in line] == []
    readable.start_server()
    done = run.finish()
    assert done.status == 5
    assert "interrupted: the server was stopped" in done.stderr
    assert "Traceback" not in readable.log("server")[said:]
    again = readable.submit(settings={"min-clients": 2}).finish()
    assert again.status == 0, again.stderr


class Comparison:
    """A `fedcore compare` of the tiny app in the background, and all that it starts: a short run and a long one."""

    def __init__(self, group: ProcessGroup, mark: str, out: Path) -> None:
        self.mark = mark
        self.out = out
        self.process: subprocess.Popen[str] = group.start("compare", self.command(out), piped=True)

    @staticmethod
    def command(out: Path) -> list[Any]:
        words = ["compare", TINY, "--clients", "2", "--modes", "federated", "--set", "pause=0.0,5.0"]
        return [*FEDCORE, *words, "--out", out]

    def wait_for_training(self) -> None:
        """Of the second run; one round before the first run warms the federation up."""
        log = self.out / "federation" / "federation-1" / "logs" / "server.log"
        wait_until(
            "the second run to train",
            lambda: log.exists() and log.read_text().count("exchange 1, stage share") == 3,
            seconds=150,
        )

    def parts(self) -> list[str]:
        """The processes that it has started, by what they are."""
        return sorted(line for line in command_lines(self.mark) if " compare " not in line)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ProcessGroup]:
    environment = {"FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1", MARK: str(tmp_path)}
    with ProcessGroup(tmp_path / "logs", environment) as processes:
        yield processes
    assert_none_left(str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, INTERRUPTED), (signal.SIGKILL, -signal.SIGKILL)], ids=["SIGINT", "SIGKILL"]
)
def test_a_comparison_that_is_ended_leaves_no_process_and_goes_on(
    group: ProcessGroup, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    out = tmp_path / "out"
    first = Comparison(group, str(tmp_path), out)
    first.wait_for_training()
    (kept,) = out.glob("runs/*/result.json")
    before = kept.stat().st_mtime_ns
    assert len([part for part in first.parts() if "fedcore" in part or "_app" in part]) >= 7, (
        "server, ServerApp, two agents with a rank each, fedcore run"
    )
    first.process.send_signal(number)
    assert first.process.wait(20) == status
    wait_until("all processes to end", lambda: not first.parts(), 15)
    again = fedcore(*Comparison.command(out)[3:], "--json", seconds=150.0)
    assert again.returncode == 0, again.stderr
    assert "run 2 of 2: federated, pause=5.0, seed 0" in again.stderr
    assert "run 1 of 2" not in again.stderr
    assert [run["status"] for run in json.loads(again.stdout)["runs"]] == ["finished", "finished"]
    assert kept.stat().st_mtime_ns == before


@pytest.mark.slow
def test_an_app_that_cannot_be_imported_is_not_compared(tmp_path: Path) -> None:
    app = tmp_path / "app"
    (app / "tiny_app").mkdir(parents=True)
    for name in ("pyproject.toml", "tiny_app/__init__.py", "tiny_app/problem.py", "tiny_app/server_app.py"):
        (app / name).write_bytes((TINY / name).read_bytes())
    (app / "tiny_app" / "client_app.py").write_text("import a_module_that_is_not_installed\n")
    done = fedcore("compare", app, "--clients", "2", "--modes", "federated", "--out", tmp_path / "out", "--json")
    assert done.returncode == 2
    assert (
        "tiny cannot be compared: ModuleNotFoundError: No module named 'a_module_that_is_not_installed'" in done.stderr
    )
    assert 'client_app.py", line 1' in done.stderr, "where to look"
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_comparison_from_end_to_end(tmp_path: Path) -> None:
    digits = Path(__file__).parents[2] / "examples" / "digits"
    out = tmp_path / "out"
    modes = ("federated", "federated-plain", "centralized")
    done = fedcore(
        *("compare", digits, "--clients", "2", "--modes", ",".join(modes), "--out", out),
        *("--run-config", "num-server-rounds=2", "--network", "wan", "--json"),
        seconds=200.0,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((out / "report.json").read_text())
    assert json.loads(done.stdout) == report
    assert report["schema"] == "fedcore/compare/2"
    jsonschema.validate(report, json.loads((files("fedcore.compare.report") / "schema.json").read_text()))
    assert {check["name"]: check["status"] for check in report["fairness"] if check["status"] != "holds"} == {}
    assert [mode["label"] for mode in report["modes"]] == list(modes)
    assert sum(site["training"] for site in report["split"]) == sum(
        sum(site["labels"].values()) for site in report["split"]
    )
    secure, plain, central = (RunResult.from_json(run) for run in report["runs"])
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
    merged = fedcore("compare", "--from", out / "report.json", "--out", tmp_path / "merged", "--json")
    assert merged.returncode == 0, merged.stderr
    assert json.loads(merged.stdout)["runs"] == report["runs"]


@pytest.mark.slow
def test_a_private_run_from_end_to_end(tmp_path: Path) -> None:
    """Real processes: epsilon after every exchange, and a budget that ends the run with a model."""
    app = Path(__file__).parents[1] / "apps" / "steady"
    out = tmp_path / "out"
    done = fedcore(
        *("compare", app, "--clients", "2", "--modes", "federated-dp", "--out", out, "--json"),
        *("--run-config", "num-server-rounds=3", "--set", "dp-epsilon=6", "--set", "dp-rounds=2"),
        seconds=110.0,
    )
    assert done.returncode == 0, done.stderr
    (values,) = json.loads(done.stdout)["runs"]
    result = RunResult.from_json(values)
    assert (result.status, result.curve[-1].round, result.samples) == ("finished", 2, 0)
    assert result.reason.startswith("privacy-budget: epsilon 5.9")
    assert result.privacy is not None
    assert 5.9 < result.privacy["epsilon"] <= result.privacy["budget"] == 6
    ledgers = list((out / "federation").glob("**/clients/*/**/ledger.jsonl"))
    assert len(ledgers) == 2
    for ledger in ledgers:
        events = [json.loads(line)["event"] for line in ledger.read_text().splitlines()]
        assert events.count("spent") == 2
    (model,) = out.glob("runs/*/model.safetensors")
    assert np.asarray(ModelState.open(model)["weight"]).std() > 0
