"""The commands as a person and a script use them: help, JSON, Ctrl-C, and a run whose updates are readable."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.deployment import MARK, Deployment, assert_none_left, command_lines, fedcore, wait_until
from support.tiny import TINY

from fedcore.compare.processes import FEDCORE, ProcessGroup
from fedcore.progress import PLAIN_WARNING
from fedcore.state import ModelState

COMMANDS = ("provision", "server", "client", "run", "simulate", "compare")
INTERRUPTED = 130

pytestmark = pytest.mark.timeout(240)


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
    """A `fedcore compare` of the tiny app in the background, and all that it starts."""

    def __init__(self, group: ProcessGroup, mark: str, out: Path, *options: str) -> None:
        self.mark = mark
        self.out = out
        command = [*FEDCORE, "compare", TINY, "--clients", "2", "--modes", "federated", "--out", out, *options]
        self.process: subprocess.Popen[str] = group.start("compare", command, piped=True)

    def wait_for_training(self) -> None:
        log = self.out / "federated" / "logs" / "server.log"
        wait_until("training to begin", lambda: log.exists() and "stage share" in log.read_text())

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
def test_a_comparison_that_is_ended_leaves_no_process(
    group: ProcessGroup, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    out = tmp_path / "out"
    first = Comparison(group, str(tmp_path), out, "--run-config", "pause=30")
    first.wait_for_training()
    assert len(first.parts()) == 7, "server, ServerApp, two agents with a rank each, fedcore run"
    first.process.send_signal(number)
    assert first.process.wait(20) == status
    wait_until("all processes to end", lambda: not first.parts(), 15)
    again = fedcore("compare", TINY, "--clients", "2", "--modes", "federated", "--out", out, "--force", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["modes"]["federated"]["status"] == "finished"


@pytest.mark.slow
def test_a_comparison_ends_when_its_clients_cannot_start(tmp_path: Path) -> None:
    app = tmp_path / "app"
    (app / "tiny_app").mkdir(parents=True)
    for name in ("pyproject.toml", "tiny_app/__init__.py", "tiny_app/problem.py", "tiny_app/server_app.py"):
        (app / name).write_bytes((TINY / name).read_bytes())
    (app / "tiny_app" / "client_app.py").write_text("import a_module_that_is_not_installed\n")
    done = fedcore("compare", app, "--clients", "2", "--modes", "federated", "--out", tmp_path / "out")
    assert done.returncode == 4
    assert "a_module_that_is_not_installed" in done.stderr
    assert "ended with exit status" in done.stderr


@pytest.mark.slow
def test_a_comparison_from_end_to_end(tmp_path: Path) -> None:
    digits = Path(__file__).parents[2] / "examples" / "digits"
    out = tmp_path / "out"
    modes = ("federated", "federated-plain", "centralized")
    done = fedcore(
        *("compare", digits, "--clients", "2", "--modes", ",".join(modes), "--out", out),
        *("--run-config", "num-server-rounds=2", "--json"),
        seconds=200.0,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((out / "report.json").read_text())
    assert json.loads(done.stdout) == report
    assert report["schema"] == "fedcore/compare/1"
    assert list(report["modes"]) == list(modes)
    for values in report["modes"].values():
        check_mode(values)
    secure, plain, central = (report["modes"][mode] for mode in modes)
    assert secure["aggregation"] == "secure"
    assert plain["aggregation"] == "plain"
    assert secure["samples"] == plain["samples"] == central["samples"] > 0
    assert abs(secure["accuracy"] - plain["accuracy"]) < 0.02
    assert central["bytes_up_per_client"] == 0 < secure["bytes_up_per_client"]
    text = (out / "report.md").read_text()
    assert all(f"| {mode} |" in text for mode in modes)
    assert PLAIN_WARNING in text
    assert PLAIN_WARNING in done.stderr
    assert (out / "plot.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    for mode in modes:
        assert ModelState.open(out / mode / "model.safetensors")


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
    values = json.loads(done.stdout)["modes"]["federated-dp"]
    assert (values["status"], values["rounds"], values["samples"]) == ("finished", 2, 0)
    assert values["reason"].startswith("privacy-budget: epsilon 5.9")
    assert 5.9 < values["epsilon"] <= 6
    assert values["privacy"]["epsilon"] == 6
    assert "-differential privacy (budget 6)" in (out / "report.md").read_text()
    ledgers = list((out / "federated-dp").glob("federation/clients/*/**/ledger.jsonl"))
    assert len(ledgers) == 2
    for ledger in ledgers:
        events = [json.loads(line)["event"] for line in ledger.read_text().splitlines()]
        assert events.count("spent") == 2
    state = ModelState.open(out / "federated-dp" / "model.safetensors")
    assert np.asarray(state["weight"]).std() > 0


def check_mode(values: dict[str, Any]) -> None:
    """One entry of `modes` in report.json: what is there, and of which type."""
    types = {
        "status": str, "reason": str, "aggregation": str, "rounds": int, "metrics": dict, "samples": int,
        "seconds": float, "bytes_up_per_client": int, "bytes_down_per_client": int, "clipped_elements": int,
        "dropouts": list, "failures": list, "accuracy": float, "loss": float, "wall_seconds": float, "curves": dict,
        "privacy": type(None), "epsilon": type(None),
    }  # fmt: skip
    assert {name: type(value) for name, value in values.items()} == types
    assert values["status"] == "finished"
    assert values["rounds"] == 2
    assert 0.2 < values["accuracy"] <= 1
    assert [point["round"] for point in values["curves"]["eval_acc"]] == [1, 2]
