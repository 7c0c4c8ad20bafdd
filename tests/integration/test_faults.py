"""What surrounds a federation breaks for a while: it says what is wrong, and goes on when the cause is gone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.deployment import Deployment, wait_until
from support.postgres import Cluster, postgres
from support.replicas import Replicas

__all__ = ["postgres"]

CLIENTS = ["client-1", "client-2", "client-3"]
WITH_CLOCK = Path(__file__).parents[1] / "support" / "program_with_clock.py"
TWO_HOURS = 7200


@pytest.fixture
def replicas(postgres: Cluster, tmp_path: Path) -> Iterator[Replicas]:
    with Replicas.open(tmp_path, postgres.create(), clients=3) as made:
        yield made


def test_a_round_waits_for_a_database_that_is_gone(replicas: Replicas, postgres: Cluster) -> None:
    made = replicas.made
    replicas.start("server")
    replicas.led_by("server")
    made.start_clients(*CLIENTS)
    run = made.submit(gated=True, settings={"min-clients": 3}, num_server_rounds=2)
    run.wait_for_training()
    postgres.stop()
    wait_until("the server to be not ready", lambda: not replicas.leads("server"))
    run.go_on()  # the updates come while nothing can be written
    wait_until("a client to be told", lambda: any("storage" in made.log(name) for name in CLIENTS))
    postgres.start()
    done = run.finish()
    assert done.status == 0, done.stderr
    assert done.trained() == [CLIENTS, CLIENTS]
    assert (done.of("exchange-failed"), done.of("dropped")) == ([], [])
    assert made.process("server").poll() is None


def test_a_leader_whose_clock_is_off_makes_way_for_one_whose_clock_is_right(replicas: Replicas, tmp_path: Path) -> None:
    made, clock = replicas.made, tmp_path / "clock"
    clock.write_text(str(TWO_HOURS))
    kit, port = made.federation.folder / "server", str(replicas.ports["server"])
    made.start_program("server", WITH_CLOCK, clock, "server", "--federation", kit, "--port", port)
    replicas.led_by("server")
    made.wait_for_log("server", " s ahead of")
    ahead = re.search(r"(\d+) s ahead of", made.log("server"))
    assert ahead is not None
    assert abs(int(ahead[1]) - TWO_HOURS) < 60, "as the database's clock was read, which takes its time"
    replicas.start("server-2")
    replicas.led_by("server-2")
    assert not replicas.leads("server")
    made.start_clients(*CLIENTS)
    done = made.submit(settings={"min-clients": 3}).finish()
    assert done.status == 0, done.stderr
    assert done.trained() == [CLIENTS]


def test_clocks_that_are_off_are_named_and_waited_for(tmp_path: Path) -> None:
    """One is fast, one is slow, and two are right."""
    off = {"client-1": (TWO_HOURS, "from the future"), "client-2": (-TWO_HOURS, "too old")}
    right = ["client-3", "client-4"]
    with Deployment.open(tmp_path) as made:
        made.start_server()
        for name, (seconds, _) in off.items():
            (tmp_path / name).write_text(str(seconds))
            made.start_program(name, WITH_CLOCK, tmp_path / name, "client", "--kit", made.kit(name), "--app", made.app)
        made.start_clients(*right)
        for name, (_, wrong) in off.items():
            made.wait_for_log(name, "set the clock of this machine, or the server's")
            assert wrong in made.log(name)
        run = made.submit(settings={"min-clients": 4})
        run.wait_for("clients", absent=list(off))
        for name in off:
            (tmp_path / name).write_text("0")
        done = run.finish()
    assert done.status == 0, done.stderr
    assert done.trained() == [[*off, *right]]
