"""A buffered run in real processes: nobody waits for the slowest, and no update is lost or summed twice."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from support.deployment import Deployment, Ended, wait_until
from support.tiny import NAMES, load_problem, step_of

BUFFERED = {"asynchrony": "buffered", "buffer-size": 3}
problem = load_problem()


def by_hand(done: Ended) -> np.ndarray:
    """The last model, from the first one and from whose updates were in which sum, by NumPy."""
    versions, seen = [problem.initial()["weight"]], set()
    sums = [event for event in done.of("exchange-done") if event["message_type"] == "train"]
    for number, event in enumerate(sums):
        total, examples = np.zeros_like(versions[0]), 0
        for name in event["survivors"]:
            age = event["staleness"][name]
            assert (name, number - age) not in seen, "an update in two sums"
            seen.add((name, number - age))
            base, count = versions[number - age], len(problem.part(NAMES.index(name), len(NAMES))[0])
            total += count / math.sqrt(1 + age) * (step_of([name], base) - base)
            examples += count
        assert event["examples"] == examples
        versions.append(versions[-1] + total / examples)
    return versions[-1]


@contextmanager
def owner_of(name: str, federation: Deployment, *, allow_differencing: bool) -> Iterator[None]:
    """Whose client is started anew with this line in its policy; kits of a test's federation allow all of it."""
    policy = federation.kit(name) / "policy.toml"
    before = policy.read_text()
    allowed, asked = (f"allow-differencing = {str(value).lower()}" for value in (True, allow_differencing))
    assert allowed in before
    federation.stop(name)
    try:
        policy.write_text(before.replace(allowed, asked))
        federation.start_clients(name)
        yield
    finally:
        policy.write_text(before)
        federation.stop(name)


@pytest.fixture
def untouched(tmp_path: Path) -> Iterator[Deployment]:
    """A federation without a past: in that of all tests the first model is in the sums of others."""
    with Deployment.open(tmp_path) as deployment:
        deployment.start()
        yield deployment


def test_a_run_does_not_wait_for_its_slowest_client_and_no_update_is_summed_twice(untouched: Deployment) -> None:
    federation = untouched
    run = federation.submit(gated=True, gated_partition=3, num_server_rounds=3, settings=BUFFERED)
    done = run.finish()  # while client 4 is at the gate
    run.go_on()
    assert done.status == 0, done.stderr
    assert done.trained() == [list(NAMES[:3])] * 3
    assert done.of("exchange-failed") == []
    np.testing.assert_allclose(done.arrays()["weight"], by_hand(done), atol=1e-5)
    # From the same first model again: two of three updates are those of the first sum.
    with owner_of("client-2", federation, allow_differencing=False):
        run = federation.submit(gated=True, gated_partition=0, num_server_rounds=1, settings=BUFFERED)
        again = run.finish()
        run.go_on()
    assert again.status == 5
    assert again.of("exchange-done") == []
    assert re.search("client-2: .*protocol-violation, update-reused", again.stderr), "it does not wait for them in vain"
    assert "2 of the updates are in the sum of exchange 1 of run" in federation.log("client-2")


def test_a_run_survives_its_server_and_a_client_in_the_middle_of_their_work(federation: Deployment) -> None:
    said = {name: len(federation.log(name)) for name in NAMES}
    run = federation.submit(gated=True, num_server_rounds=3, settings=BUFFERED)
    for name in NAMES:
        federation.wait_for_log(name, "at the gate", after=said[name])
    federation.kill("client-2")
    federation.kill("server")
    wait_until("the ServerApp to end", lambda: not federation.server_apps())
    federation.start_server()
    federation.start_clients("client-2")
    run.go_on()
    done = run.finish()
    assert done.status == 0, done.stderr
    assert [len(names) for names in done.trained()] == [3, 3, 3]
    np.testing.assert_allclose(done.arrays()["weight"], by_hand(done), atol=1e-5)
