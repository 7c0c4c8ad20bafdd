"""Why a run of a parameter server failed, in whatever order its processes are seen to end."""

import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from pathlib import Path

import pytest

from fedcore.comparison.modes import parse_modes
from fedcore.comparison.modes.parameter_server import Training
from fedcore.comparison.parameter_server.messages import Pair, be_local, new_header
from fedcore.comparison.parameter_server.task import ServerTask
from fedcore.comparison.run import PlannedRun
from fedcore.comparison.workers.processes import Ended, WorkerEvent
from fedcore.errors import EnvironmentFailure, RunFailed
from fedcore.flower.app import FlowerApp
from fedcore.system.peers import PeerLost
from fedcore.wire.events import ignore

APP = Path(__file__).parents[2] / "apps" / "blobs"
PAUSE = 10.0
"""Seconds from one end to the next: a process may get no time for so long."""


class Told:
    """Workers that are seen to end one after another, with nothing for a while before each."""

    def __init__(self, *ends: tuple[str, Ended]) -> None:
        self.left = [WorkerEvent(name, end) for name, end in ends]

    def start(self, name: str, *_: object) -> None:
        pass

    def events(self, *, silence: float) -> Iterator[WorkerEvent]:
        while self.left:
            if silence < PAUSE:
                raise EnvironmentFailure("nothing heard")
            yield self.left.pop(0)


def left_by_its_peer() -> Ended:
    """How a process ends whose peer was lost."""
    try:
        raise PeerLost("Connection closed by peer")
    except PeerLost as error:
        return Ended(exitcode=1, reason=str(error), traceback=traceback.format_exc())


def reason(*ends: tuple[str, Ended]) -> str:
    app = FlowerApp.load(APP)
    (chosen,) = parse_modes("ps-async[shards=2]")
    run = PlannedRun(
        app=app, chosen=chosen, config=app.run_config, settings={}, sites=1, seed=3, folder=Path("/nowhere")
    )  # fmt: skip
    training = Training(ServerTask(run=run), Told(*ends), ignore)  # type: ignore[arg-type]
    with pytest.raises(RunFailed) as caught:
        training.run()
    return str(caught.value)


@pytest.mark.parametrize(
    ("first", "found"),
    [
        (
            Ended(exitcode=-9, reason="ended by SIGKILL"),
            "shard-1 was lost in round 1 (ended by SIGKILL); its part of the model is nowhere else",
        ),
        (Ended(exitcode=1, reason="ValueError: no", traceback="ValueError: no\n"), "shard-1: ValueError: no"),
    ],
)
def test_the_shard_that_failed_by_itself_is_the_reason(first: Ended, found: str) -> None:
    ends = [("shard-1", first), ("shard-0", left_by_its_peer()), ("client-1", left_by_its_peer())]
    assert {reason(*order) for order in permutations(ends)} == {found}


def test_where_none_failed_by_itself_the_first_to_end_is_the_reason() -> None:
    assert reason(("shard-1", left_by_its_peer()), ("client-1", left_by_its_peer())).startswith("shard-1: Connection")


def test_a_lost_process_is_named_and_gloo_speaks_to_the_log_alone(tmp_path: Path) -> None:
    be_local()
    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(Pair.serve, tmp_path / "pair", "client-2", seconds=60.0)
        worker = Pair.join(tmp_path / "pair", "shard-0", seconds=60.0)
        pair = serving.result()
    del worker  # not before both have met: one that leaves while they meet is lost to its peer already
    with pytest.raises(PeerLost, match=r"^client-2 .* 60 s$") as lost:
        pair.receive(new_header())
    assert "gloo/transport/" in str(lost.value.__cause__)
