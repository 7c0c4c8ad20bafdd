"""What is read off a run's events: who fetched which model, and how a client is lost."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.events import event
from support.raising import raises

from fedcore.comparison.run import Kill
from fedcore.comparison.run_observers import ClientKiller, ModelVersions, SentModels
from fedcore.errors import EnvironmentFailure
from fedcore.monitoring.run_record import RunRecord
from fedcore.system.workers.child_processes import ChildProcesses
from fedcore.wire.events import RunEvent

CLIENTS = ["client-1", "client-2"]


def exchange(server_round: int, model: str | None, cohort: list[str] | None = None) -> RunEvent:
    return event("exchange", server_round=server_round, model=model, cohort=cohort or CLIENTS)


def done(server_round: int, message_type: str = "evaluate") -> RunEvent:
    return event("exchange-done", server_round=server_round, message_type=message_type)


def dropped(client: str) -> RunEvent:
    return event("dropped", client=client, stage="share", reason="silent")


def ended(status: str, reason: str = "") -> RunRecord:
    record = RunRecord()
    record.add(event("ended", status=status, reason=reason), 0.0)
    return record


def test_a_model_is_fetched_once() -> None:
    held: dict[str, str] = {}
    given = SentModels(on_clients=held)
    for server_round, model in ((1, "a"), (1, "b"), (2, "b"), (2, "c")):
        given.see(exchange(server_round, model))
        given.see(done(server_round))
    assert given.models == ["a", "b", "b", "c"]
    assert [len(names) for names in given.fetched] == [2, 2, 0, 2]
    # The next run of the same federation.
    again = SentModels(on_clients=held)
    again.see(exchange(1, "c"))
    again.see(done(1))
    assert again.fetched == [frozenset()]


def test_an_attempt_that_failed_leaves_its_model_with_the_clients() -> None:
    given = SentModels(on_clients={})
    given.see(exchange(1, "a", ["client-1"]))
    given.see(exchange(1, "a"))
    given.see(done(1))
    assert given.models == ["a"]
    assert given.fetched == [frozenset({"client-2"})]


def test_a_run_that_ends_while_its_versions_are_looked_for_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, look = tmp_path / "work" / "run" / "versions", os.scandir
    folder.mkdir(parents=True)
    (folder / "1.safetensors").write_bytes(b"a model")
    versions = ModelVersions(tmp_path, tmp_path)
    versions.see(exchange(1, "a"))
    assert [path.read_bytes() for path in versions.paths.values()] == [b"a model"]

    def too_late(path: Any) -> Any:
        if Path(path) == folder:
            (folder / "1.safetensors").unlink()
            folder.rmdir()
        return look(path)

    monkeypatch.setattr(os, "scandir", too_late)
    late = ModelVersions(tmp_path, tmp_path)
    late.see(exchange(1, "a"))
    assert not folder.exists()
    assert late.paths == {}


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ChildProcesses]:
    """Two clients that only sleep."""
    with ChildProcesses(tmp_path / "logs") as made:
        for name in CLIENTS:
            made.start(name, ["sleep", "60"])
        yield made


def killing(group: ChildProcesses, *, buffered: bool = False) -> ClientKiller:
    ticks = iter(range(100))
    kill, clock = Kill(site=1, round=2), lambda: float(next(ticks))
    return ClientKiller(group=group, kill=kill, sites=2, buffered=buffered, clock=clock)


def test_a_client_is_killed_after_the_evaluation_of_its_round(group: ChildProcesses) -> None:
    watch = killing(group)
    for data in (done(1), done(2, "train")):
        watch.see(data)
    assert group.living == CLIENTS
    watch.see(done(2))
    assert group.living == ["client-1"]
    group.check()  # it is not missed
    watch.see(dropped("client-1"))
    assert watch.losses(ended("finished"))[0].consequence.startswith("not missed"), "the other one was not to be lost"
    watch.see(dropped("client-2"))
    (loss,) = watch.losses(ended("finished"))
    assert loss.consequence == "dropped in stage share (silent); the run went on with 1 of 2 clients"
    assert (loss.worker, loss.round, loss.seconds) == ("client-2", 2, 1.0)


def test_a_buffer_without_it_does_not_say_that_it_is_missed(group: ChildProcesses) -> None:
    watch = killing(group, buffered=True)
    watch.see(done(2))
    watch.see(exchange(3, "a", ["client-1"]))
    watch.see(dropped("client-2"))
    (loss,) = watch.losses(ended("finished"))
    assert loss.consequence.startswith("dropped in stage share")


def test_without_an_evaluation_it_is_killed_with_the_next_round(group: ChildProcesses) -> None:
    watch = killing(group)
    watch.see(exchange(2, "a"))
    assert group.living == CLIENTS
    watch.see(exchange(3, "b"))
    assert group.living == ["client-1"]
    watch.see(event("ended", status="failed", reason="too few"))
    (loss,) = watch.losses(ended("failed", "too few"))
    assert loss.consequence == "not missed before the end; the run failed: too few"


def test_nobody_is_lost_where_nobody_is_to_be_killed(group: ChildProcesses) -> None:
    watch = ClientKiller(group=group, kill=None, sites=2)
    watch.see(done(2))
    assert watch.losses(ended("finished")) == ()
    assert group.living == CLIENTS


def test_a_child_that_ends_by_itself_is_missed(group: ChildProcesses) -> None:
    group.start("client-3", ["false"]).wait()
    with raises(EnvironmentFailure, check="child-ended", match=r"client-3\D+1\b"):
        group.check()
