"""Clients of several ranks, on one machine and on two, in a cohort with ordinary ones: the sum stays right."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from support.deployment import Deployment, wait_until
from support.tiny import NAMES, load_problem, step_of

from fedcore.comparison.local_federation import free_port

NAMESPACE = "fedcore-test"
HERE, THERE = "10.213.7.1", "10.213.7.2"


@dataclass(frozen=True)
class Network:
    """Two machines. host: address of the first; within: the command that runs another on the second."""

    host: str
    within: Sequence[str] = ()


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """A network namespace for the second machine, where we may make one; two addresses on loopback elsewhere."""
    if not _make_namespace():
        yield Network("127.0.0.2")
        return
    try:
        yield Network(HERE, ("ip", "netns", "exec", NAMESPACE))
    finally:
        _run(f"ip netns del {NAMESPACE}")


def _make_namespace() -> bool:
    if shutil.which("ip") is None:
        return False
    commands = (
        f"ip netns add {NAMESPACE}",
        f"ip link add fedcore0 type veth peer name fedcore1 netns {NAMESPACE}",
        f"ip addr add {HERE}/30 dev fedcore0",
        "ip link set fedcore0 up",
        f"ip -n {NAMESPACE} addr add {THERE}/30 dev fedcore1",
        f"ip -n {NAMESPACE} link set fedcore1 up",
        f"ip -n {NAMESPACE} link set lo up",
    )
    made = all(_run(command) for command in commands)
    if not made:
        _run(f"ip netns del {NAMESPACE}")
    return made


def _run(command: str) -> bool:
    return subprocess.run(command.split(), capture_output=True, check=False, timeout=600).returncode == 0


def assert_round_without(name: str, federation: Deployment, node: str) -> None:
    """Kill a rank of `node` in the first of two rounds: that is the mean of the others, the second the one of all."""
    run = federation.submit(gated=True, num_server_rounds=2)
    run.wait_for_training()
    federation.ranks(node)[-1].kill()
    dropped = run.wait_for("dropped", client=name)
    assert dropped["reason"] == "withdrew: worker-died, rank-killed"
    run.go_on()
    done = run.finish()
    assert done.status == 0, done.stderr
    others = [other for other in NAMES if other != name]
    assert done.trained() == [others, list(NAMES)]
    expected = step_of(NAMES, step_of(others, load_problem().initial()["weight"]))
    np.testing.assert_allclose(done.arrays()["weight"], expected, rtol=0, atol=1e-5)


def test_a_killed_rank_of_two_costs_its_client_one_exchange(federation: Deployment) -> None:
    federation.stop("client-4")
    said = len(federation.log("client-4"))
    federation.start_client("client-4", "--nproc-per-node", "2", "--engine", "ddp", "--engine-set", "hook=bf16")
    federation.wait_for_log("client-4", "connected", after=said)
    before = federation.ranks("client-4")
    assert len(before) == 2
    assert_round_without("client-4", federation, "client-4")
    assert "rank 1 ended by SIGKILL" in federation.log("client-4")[said:]
    assert not any(rank.is_running() for rank in before)
    again = federation.ranks("client-4")
    done = federation.submit().finish()
    assert done.trained() == [list(NAMES)]
    assert federation.ranks("client-4") == again, "the ranks stay from run to run"


def test_a_client_of_two_machines(federation: Deployment) -> None:
    with network() as machines:
        assert_goes_on_two(machines, federation)


def assert_goes_on_two(network: Network, federation: Deployment) -> None:
    federation.stop("client-3")
    said = len(federation.log("client-3"))
    meeting = ("--nnodes", "2", "--rdzv-endpoint", f"{network.host}:{free_port(network.host)}")
    federation.start_node("client-3-node-1", *meeting, "--node-rank", "1", within=network.within)
    federation.start_client("client-3", *meeting)
    federation.wait_for_log("client-3", "connected", after=said)
    assert_round_without("client-3", federation, "client-3-node-1")

    # The first machine comes and goes, the second waits for it.
    assert federation.stop("client-3") == 0
    wait_until("the ranks to end", lambda: not federation.ranks("client-3-node-1"))
    said = len(federation.log("client-3"))
    federation.start_client("client-3", *meeting)
    federation.wait_for_log("client-3", "connected", after=said)
    ranks = federation.ranks("client-3-node-1")
    assert len(ranks) == 1
    assert federation.stop("client-3-node-1") == 0
    wait_until("the ranks to end", lambda: not any(rank.is_running() for rank in ranks))
