"""Ranks in jobs of a real SLURM on this machine: run, fail, wait in the queue, are cancelled, are left by an agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import psutil
import pytest
from support import slurm
from support.deployment import wait_until
from support.rank_app import said, write_app

from client_app.output import Output
from client_app.ranks.failures import JOB_LOST, JOB_QUEUED, JOB_REFUSED, RANK_HUNG, AppFailed, RankFailed
from client_app.ranks.group import GroupSettings
from client_app.ranks.jobs.group import JobGroup
from client_app.ranks.jobs.slurm import Slurm
from fedcore.federation.kits.rank_jobs import RankJobs
from fedcore.flower.app import AppBundle
from fedcore.state import ModelState
from fedcore.wire.tasks import Task
from tests.support.raising import raises

pytestmark = pytest.mark.skipif(bool(slurm.why_not()), reason=slurm.why_not())
SECRET = "sk-that-no-node-may-see"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm.Cluster]:
    with slurm.cluster(tmp_path_factory.mktemp("slurm") / "cluster") as made:
        yield made


@pytest.fixture
def jobs(tmp_path: Path, cluster: slurm.Cluster, monkeypatch: pytest.MonkeyPatch) -> RankJobs:
    monkeypatch.setenv("SLURM_CONF", str(cluster.configuration))
    monkeypatch.setenv("SITE_TOKEN", SECRET)
    (tmp_path / "shared").mkdir()
    return RankJobs(launcher="slurm", folder=tmp_path / "shared", partition="main", time="30", poll_seconds=0.5)


@pytest.fixture
def make_group(jobs: RankJobs, tmp_path: Path, log: StringIO) -> Callable[..., JobGroup]:
    app = write_app(tmp_path / "app")

    def make(
        *, name: str = "fedcore-client-1-00", ranks: int = 1, patience: float = 120.0, **changes: object
    ) -> JobGroup:
        changed = replace(jobs, **changes)  # type: ignore[arg-type]
        settings = GroupSettings(
            app=app,
            app_sha256=AppBundle.from_folder(app).sha256,
            client_id=1,
            node_config={"site": "north"},
            ranks=ranks,
        )
        output = Output(name="client-1", stream=log)
        return JobGroup(settings, output, jobs=changed, launcher=Slurm(changed), name=name, patience=patience)

    return make


@pytest.fixture
async def group(make_group: Callable[..., JobGroup]) -> AsyncIterator[JobGroup]:
    group = make_group()
    yield group
    await group.stop()


def task_of(make_task: Callable[..., Task], mode: str, *, seconds: float = 600.0, **config: object) -> Task:
    return make_task(run=f"{mode}{config}", run_config={"mode": mode, **config}, seconds=seconds)


async def test_a_job_serves_tasks_and_outlives_failures_of_its_ranks(
    group: JobGroup, make_task: Callable[..., Task], cluster: slurm.Cluster, tmp_path: Path, log: StringIO
) -> None:
    model, out = tmp_path / "global.safetensors", tmp_path / "out.safetensors"
    await group.start()
    [number] = cluster.jobs()

    async def serves(calls: float) -> None:
        answer = await group.run(task_of(make_task, "ok"), model, out)
        assert (answer.trained, answer.examples, answer.metrics["calls"]) == (True, 7, calls)
        assert (ModelState.open(out)["weight"] == ModelState.open(model)["weight"] + 1).all()

    await serves(1)
    with raises(AppFailed, match="ValueError", numbers=(0,)):
        await group.run(task_of(make_task, "raise"), model, out)
    await serves(3)
    with raises(RankFailed, check=RANK_HUNG):
        await group.run(task_of(make_task, "hang", seconds=3.0), model, out)
    await serves(1)
    waiting = asyncio.create_task(group.run(task_of(make_task, "hang"), model, out))
    await asyncio.sleep(0.5)
    waiting.cancel()
    await asyncio.wait([waiting])
    await serves(1)
    assert cluster.jobs() == [number], "all in one job"
    await said(log, "as north")
    shared = [path for path in group.folder.rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in path.read_bytes() for path in shared)
    hosts = [
        one for one in psutil.process_iter(["cmdline"]) if str(group.folder) in " ".join(one.info["cmdline"] or [])
    ]
    assert len(hosts) >= 2, "the step's and the host's"
    assert not any(SECRET in one.environ().values() for one in hosts)
    ranks = [one for host in hosts for one in host.children(recursive=True) if "client_app.ranks.rank" in one.cmdline()]
    assert ranks
    assert {one.environ()["OMP_NUM_THREADS"] for one in ranks} == {"1"}, "its node has one processor"
    assert not list((group.folder / "models").iterdir()), "no model stays"
    await group.stop()
    wait_until("the job to be cancelled", lambda: not cluster.jobs(), 60)
    assert [path.name for path in group.folder.iterdir() if path.name.startswith("run-")] == []


async def test_ranks_of_two_nodes_meet(
    make_group: Callable[..., JobGroup], make_task: Callable[..., Task], cluster: slurm.Cluster, tmp_path: Path
) -> None:
    group = make_group(nodes=2)
    try:
        answer = await group.run(
            task_of(make_task, "ok"), tmp_path / "global.safetensors", tmp_path / "out.safetensors"
        )
        assert answer.metrics["ranks"] == 3.0
        [number] = cluster.jobs()
        cluster.command("scancel", number)
        with raises(RankFailed, check=JOB_LOST, match=number):
            await group.run(task_of(make_task, "hang"), tmp_path / "global.safetensors", tmp_path / "out.safetensors")
    finally:
        await group.stop()
    wait_until("no job to be left", lambda: not cluster.jobs(), 60)


async def test_a_job_in_the_queue_and_one_that_is_refused(
    make_group: Callable[..., JobGroup], make_task: Callable[..., Task], cluster: slurm.Cluster, tmp_path: Path
) -> None:
    refused = make_group(partition="nowhere")
    with raises(RankFailed, check=JOB_REFUSED):
        await refused.start()
    await refused.stop()
    cluster.command("scontrol", "update", "PartitionName=main", "State=DOWN")
    group = make_group()
    model, out = tmp_path / "global.safetensors", tmp_path / "out.safetensors"
    try:
        with raises(RankFailed, check=JOB_QUEUED, match="PENDING") as failure:
            await group.run(task_of(make_task, "ok", seconds=4.0), model, out)
        [number] = cluster.jobs()
        assert f"job {number} " in str(failure.value), "the job is named"
        cluster.command("scontrol", "update", "PartitionName=main", "State=UP")
        assert (await group.run(task_of(make_task, "ok"), model, out)).trained
        assert cluster.jobs() == [number], "the same job, once it runs"
    finally:
        cluster.command("scontrol", "update", "PartitionName=main", "State=UP")
        await group.stop()
    wait_until("no job to be left", lambda: not cluster.jobs(), 60)


async def test_a_job_without_work_and_one_that_an_agent_left(
    make_group: Callable[..., JobGroup], cluster: slurm.Cluster, tmp_path: Path, log: StringIO
) -> None:
    group = make_group(idle_seconds=1.0)
    script = tmp_path / "left.sh"
    script.write_text("#!/bin/sh\nsleep 600\n")
    submit = ("sbatch", "--parsable", "--output=/dev/null")
    left = cluster.command(*submit, f"--job-name={group.name}", str(script)).strip()
    other = cluster.command(*submit, "--job-name=other", str(script)).strip()
    try:
        await asyncio.wait_for(group.start(), 120)
        assert left not in cluster.jobs(), "it was left by an agent that was killed"
        await said(log, "idle-seconds")
        # The agent, on this loop, says it first and cancels then.
        await asyncio.to_thread(
            wait_until, "the job without work to be cancelled", lambda: cluster.jobs() == [other], 60
        )
    finally:
        await group.stop()
        cluster.command("scancel", other)
    wait_until("no job to be left", lambda: not cluster.jobs(), 60)
