"""A leader that is frozen while clients wait for it: they notice that another server leads, and go over to it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.deployment import wait_until
from support.postgres import Cluster, postgres
from support.replicas import Replicas

__all__ = ["postgres"]

CLIENTS = ["client-1", "client-2", "client-3"]
POLL_SECONDS = 25.0
"""`LONG_POLL_SECONDS`: a client that only waits for the end of its poll is silent for longer."""


@pytest.fixture
def replicas(postgres: Cluster, tmp_path: Path) -> Iterator[Replicas]:
    with Replicas.open(tmp_path, postgres.create(), clients=3) as made:
        yield made


def test_clients_go_over_to_the_server_that_leads_now(replicas: Replicas) -> None:
    made = replicas.made
    replicas.start("server")
    replicas.led_by("server")
    replicas.start("server-2")
    made.start_clients(*CLIENTS)
    frozen = made.process("server")
    before = {name: len(made.log(name)) for name in CLIENTS}
    frozen.send_signal(signal.SIGSTOP)
    try:
        replicas.led_by("server-2")
        led = time.monotonic()
        for name in CLIENTS:
            made.wait_for_log(name, "connected again", after=before[name])
        assert time.monotonic() - led < POLL_SECONDS - 10.0
        run = made.submit(settings={"min-clients": 3}, num_server_rounds=1)
        done = run.finish()
        assert done.status == 0, done.stderr
        assert done.trained() == [CLIENTS]
    finally:
        frozen.send_signal(signal.SIGCONT)
    wait_until("the frozen one to know", lambda: "leads no more" in made.log("server"))
