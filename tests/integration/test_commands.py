"""The commands as a person and a script use them: help, JSON, Ctrl-C, and a run whose updates are readable."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest
from support.commands import forked
from support.deployment import Deployment, fedcore, wait_until
from support.tiny import TINY

from fedcore.monitoring.progress import PLAIN_WARNING
from fedcore.monitoring.promise import MASKS_ONLY
from fedcore.state import ModelState

COMMANDS = ("provision", "server", "client", "run", "stats", "simulate", "compare")
INTERRUPTED = 130


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Two clients whose owners allow plain aggregation."""
    with Deployment.open(tmp_path_factory.mktemp("two"), clients=2, allow_plain=True, forked=False) as deployment:
        deployment.start()
        yield deployment


@pytest.fixture
def readable(two: Deployment) -> Deployment:
    """A federation whose updates the server may read."""
    return two.revive()


def test_help_lists_the_commands_in_the_order_of_their_use() -> None:
    done = fedcore("--help")
    assert done.returncode == 0
    places = [done.stdout.index(f"│ {name} ") for name in COMMANDS]
    assert places == sorted(places)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_shows_an_example(command: str) -> None:
    done = forked(command, "--help")
    assert done.returncode == 0
    _, _, example = done.stdout.partition("Example")
    assert f"fedcore {command} " in example


def test_json_of_the_commands_without_a_server(tmp_path: Path) -> None:
    made = json.loads(forked("provision", tmp_path / "fed", "--clients", "3", "--port", "9443", "--json").stdout)
    known = {"folder": str(tmp_path / "fed"), "federation": "fed", "clients": 3, "port": 9443}
    assert made == {**known, "warnings": []}
    model = tmp_path / "model.safetensors"
    done = json.loads(forked("simulate", TINY, "--clients", "3", "--out", model, "--json").stdout)
    assert done["status"] == "finished"
    assert done["aggregation"] == "secure"
    assert "weight" in ModelState.open(model)


def test_export_says_that_a_client_has_no_model_of_its_own(readable: Deployment) -> None:
    done = forked("client", "export", "--kit", readable.kit("client-1"), "--out", readable.folder / "model")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
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


def test_a_person_is_told_of_a_plain_run_before_and_after_it(readable: Deployment) -> None:
    command = (
        "run",
        TINY,
        "--operator",
        readable.federation.operator,
        "--out",
        readable.folder / "m.safetensors",
        "--force",
    )
    plain = fedcore(*command, "--set", "aggregation=plain")
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout.count(PLAIN_WARNING) == 2
    assert MASKS_ONLY not in plain.stdout
    secure = fedcore(*command)
    assert secure.returncode == 0, secure.stderr
    assert "plain" not in secure.stdout
    assert secure.stdout.count(MASKS_ONLY) == 1
    assert "2 of 2 clients joined: client-1, client-2" in secure.stdout
    assert f"model saved to {readable.folder}/m.safetensors" in secure.stdout


def test_ctrl_c_on_a_run_cancels_it_and_the_next_one_works(readable: Deployment) -> None:
    run = readable.submit(gated=True)
    run.wait_for_training()
    run.process.send_signal(signal.SIGINT)
    done = run.finish()
    assert done.status == INTERRUPTED
    assert "cancelling run" in done.stderr
    assert "fedcore runs model" in done.stderr
    assert not done.model.exists()
    # The server is free at once, and so are the clients although their app sleeps.
    again = readable.submit().finish()
    assert again.status == 0, again.stderr
    assert again.of("exchange-done")[0]["survivors"] == ["client-1", "client-2"]


def test_a_client_that_is_stopped_takes_its_ranks_along(readable: Deployment) -> None:
    statuses = {"client-1": (signal.SIGINT, INTERRUPTED), "client-2": (signal.SIGTERM, 0)}
    for name, (number, status) in statuses.items():
        (rank,) = wait_until("the rank to run", partial(readable.ranks, name))
        assert readable.stop(name, number) == status
        wait_until("the rank to end", partial(_has_ended, rank))
    readable.start_clients(*statuses)
    done = readable.submit(settings={"min-clients": 2}).finish()
    assert done.status == 0, done.stderr


def _has_ended(process: psutil.Process) -> bool:
    return not process.is_running()


def test_a_server_that_is_ended_leaves_its_run_to_its_next_start(readable: Deployment) -> None:
    """Whichever signal ends it; its ServerApp ends as well."""
    said = len(readable.log("server"))
    run = readable.submit(gated=True)
    run.wait_for_training()
    for times, number in enumerate((signal.SIGINT, signal.SIGTERM, signal.SIGKILL), start=1):
        wait_until("the ServerApp", readable.server_apps)
        killed = number == signal.SIGKILL
        assert readable.stop("server", number) == (-number if killed else 0)
        wait_until("the ServerApp to end with its server", lambda: not readable.server_apps())
        readable.start_server()
        run.wait_until_resumed(times)
    run.go_on()
    done = run.finish()
    assert done.status == 0, done.stderr
    assert len(done.of("resumed")) == 3
    assert "Traceback" not in readable.log("server")[said:]
    again = readable.submit(settings={"min-clients": 2}).finish()
    assert again.status == 0, again.stderr
