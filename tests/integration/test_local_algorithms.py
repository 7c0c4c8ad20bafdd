"""SCAFFOLD in a real federation: what a client keeps moves on only with an update that was in a sum."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
from support.deployment import PATIENCE, Deployment

APP = Path(__file__).parents[1] / "apps" / "squares"
DOOMED, OF_TWO_RANKS = "client-2", "client-3"
NAMES = ("client-1", "client-2", "client-3", "client-4")


def problem() -> ModuleType:
    spec = importlib.util.spec_from_file_location("squares_problem", APP / "squares_app" / "problem.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scaffold(present: Sequence[Sequence[str]], *, kept: Callable[[int, str], bool]) -> np.ndarray:
    """Karimireddy et al. 2020, algorithm 1, option II. kept: whether a client keeps what it has after a round."""
    given = problem()
    x, c = np.zeros(3), np.zeros(3)
    ci = {name: np.zeros(3) for name in NAMES}
    for number, names in enumerate(present, start=1):
        ends, changes = {}, {}
        for place, name in enumerate(NAMES):
            y = x
            for _ in range(given.STEPS[place]):
                gradient = 2 / len(given.X[place]) * given.X[place].T @ (given.X[place] @ y - given.Y[place])
                y = y - given.RATE * (gradient - ci[name] + c)
            ends[name] = y
            changes[name] = (x - y) / (given.STEPS[place] * given.RATE) - c
        for name in NAMES:
            if kept(number, name):
                ci[name] = ci[name] + changes[name]
        c = c + len(names) / len(NAMES) * np.mean([changes[name] for name in names], axis=0)
        x = np.mean([ends[name] for name in names], axis=0)
    return x


def test_a_client_killed_after_its_training_begins_again_from_what_it_kept_before(tmp_path: Path) -> None:
    """Its update is written and masked, and on the server's disk, but not in the sum. Another client has two ranks."""
    with Deployment.open(tmp_path) as federation:
        federation.app = APP
        federation.start_server()
        doomed = federation.start_client(DOOMED, dies_after="update/parts/0")
        federation.start_client(OF_TWO_RANKS, "--nproc-per-node", "2", "--engine", "ddp")
        for name in set(NAMES) - {DOOMED, OF_TWO_RANKS}:
            federation.start_client(name)
        for name in NAMES:
            federation.wait_for_log(name, "connected")
        run = federation.submit(gated=True)
        assert doomed.wait(PATIENCE) == -signal.SIGKILL
        federation.start_clients(DOOMED)
        run.wait_for("exchange-done", server_round=1, message_type="train")
        run.go_on()
        done = run.finish()
    assert done.status == 0, done.stderr
    present = done.trained()
    assert present[0] == [name for name in NAMES if name != DOOMED]
    assert DOOMED in present[2], "it was back before round 2 ended"
    found = done.arrays()["weight"].reshape(3)
    expected = scaffold(present, kept=lambda number, name: name in present[number - 1])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    moved_on = scaffold(present, kept=lambda number, name: number == 1 or name in present[number - 1])
    assert np.abs(moved_on - expected).max() > 1e-3 * np.abs(expected).max(), "its state must show"
