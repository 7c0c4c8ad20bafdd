"""Attempts at one exchange, in real processes: each client runs its app once, and the sum is right."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.deployment import PATIENCE, Deployment

UNEVEN = Path(__file__).parents[1] / "apps" / "uneven"
ROUNDS = [1, 2, 3]
LARGE = {"large_round": 3, "large_site": 3, "large_by": 1e3}
"""About 64 times the scale: it fits the next one even if the sum reads as a rung too low, as one in 64 does."""


@pytest.fixture
def runs() -> Iterator[Path]:
    """A folder that a confined app may write to."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="fedcore-runs-"))
    yield folder
    shutil.rmtree(folder)


def rounds_of(runs: Path) -> dict[str, list[int]]:
    """Site -> in which rounds its app ran, in order."""
    return {path.name: list(map(int, path.read_text().split())) for path in sorted(runs.iterdir())}


def test_an_update_that_is_too_large_is_sent_again_and_not_made_again(
    uneven: Deployment, runs: Path, simulate: Callable[..., Any]
) -> None:
    done = uneven.submit(settings={"w-max": 64}, runs=str(runs), **LARGE).finish()
    assert done.status == 0, done.stderr
    # The first exchange, too: it holds weighted changes up to 1, and those of the largest site are larger.
    [first, repeat] = done.of("exchange-repeated")
    assert (first["server_round"], first["survivors"]) == (1, 4)
    assert (repeat["server_round"], repeat["large"], repeat["survivors"]) == (3, 1, 4)
    assert [event["clipped"] for event in done.of("exchange-done")] == [0, 0, 0]
    assert (done.summary["repeats"], done.summary["failures"]) == (2, [])
    assert rounds_of(runs) == {f"site-{site}": ROUNDS for site in range(4)}
    assert [uneven.log(f"client-{number}").count("the app does not run again") for number in (1, 2, 3, 4)] == [2] * 4
    plain = simulate(4, app=UNEVEN, settings={"aggregation": "plain"}, **LARGE)
    np.testing.assert_allclose(done.arrays()["weight"], plain.state["weight"], rtol=1e-3, atol=1.0)
    for number in (1, 2, 3, 4):
        name = f"client-{number}"
        assert uneven.stop(name) == 0
        assert not (uneven.kit(name) / "state" / "answer").exists()


def test_a_second_attempt_runs_only_the_app_that_was_lost(uneven: Deployment, runs: Path) -> None:
    uneven.stop("client-3")
    said = len(uneven.log("client-3"))
    doomed = uneven.start_client("client-3", dies_after="update/parts/0")
    uneven.wait_for_log("client-3", "connected", after=said)
    run = uneven.submit(settings={"quorum": 4}, runs=str(runs))
    doomed.wait(PATIENCE)
    uneven.start_clients("client-3")
    done = run.finish()
    assert done.status == 0, done.stderr
    assert [event["retry"] for event in done.of("exchange-failed")] == [True]
    others = {f"site-{site}": ROUNDS for site in (0, 1, 3)}
    assert rounds_of(runs) == {**others, "site-2": [1, *ROUNDS]}
