"""Why a run of a parameter server failed, in whatever order its processes are seen to end."""

import traceback
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from fedcore.compare.modes import parse_modes
from fedcore.compare.parameter_server.supervision import Training
from fedcore.compare.parameter_server.tasks import Task
from fedcore.compare.run import ModeRun
from fedcore.compare.workers import ENDED, WorkerEvent
from fedcore.errors import EnvironmentFailure, RunFailed
from fedcore.events import ignore
from fedcore.flower.app import FlowerApp
from fedcore.system.peers import PeerLost

APP = Path(__file__).parents[2] / "apps" / "blobs"
PAUSE = 10.0
"""Seconds from one end to the next: a process may get no time for so long."""


class Told:
    """Workers that are seen to end one after another, with nothing for a while before each."""

    def __init__(self, *ends: tuple[str, dict[str, Any]]) -> None:
        self.left = [WorkerEvent(name, ENDED, data) for name, data in ends]

    def start(self, name: str, *_: object) -> None:
        pass

    def events(self, *, silence: float) -> Iterator[WorkerEvent]:
        while self.left:
            if silence < PAUSE:
                raise EnvironmentFailure("nothing heard")
            yield self.left.pop(0)


def left_by_its_peer() -> dict[str, Any]:
    """How a process ends whose peer was lost."""
    try:
        raise PeerLost("Connection closed by peer")
    except PeerLost as error:
        return {"exitcode": 1, "reason": str(error), "traceback": traceback.format_exc()}


def reason(*ends: tuple[str, dict[str, Any]]) -> str:
    app = FlowerApp.load(APP)
    (mode,) = parse_modes("ps-async[shards=2]")
    run = ModeRun(
        app=app, mode=mode, config=app.run_config, settings={}, sites=1, seed=3, folder=Path("/nowhere")
    )  # fmt: skip
    training = Training(Task(run=run), Told(*ends), ignore)  # type: ignore[arg-type]
    with pytest.raises(RunFailed) as caught:
        training.run()
    return str(caught.value)


@pytest.mark.parametrize(
    ("first", "found"),
    [
        (
            {"exitcode": -9, "reason": "ended by SIGKILL", "traceback": ""},
            "shard-1 was lost in round 1 (ended by SIGKILL); its part of the model is nowhere else",
        ),
        ({"exitcode": 1, "reason": "ValueError: no", "traceback": "ValueError: no\n"}, "shard-1: ValueError: no"),
    ],
)
def test_the_shard_that_failed_by_itself_is_the_reason(first: dict[str, Any], found: str) -> None:
    ends = [("shard-1", first), ("shard-0", left_by_its_peer()), ("client-1", left_by_its_peer())]
    assert {reason(*order) for order in permutations(ends)} == {found}


def test_where_none_failed_by_itself_the_first_to_end_is_the_reason() -> None:
    assert reason(("shard-1", left_by_its_peer()), ("client-1", left_by_its_peer())).startswith("shard-1: Connection")
