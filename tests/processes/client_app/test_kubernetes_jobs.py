"""Ranks in a Job of Kubernetes, whose `kubectl` is a stand-in: no cluster is here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from support.rank_app import write_app

from client_app.output import Output
from client_app.ranks.failures import JOB_LOST, RankFailed
from client_app.ranks.group import GroupSettings
from client_app.ranks.jobs.group import JobGroup
from client_app.ranks.jobs.kubernetes import Kubernetes
from fedcore.federation.kits.rank_jobs import RankJobs
from fedcore.flower.app import AppBundle
from fedcore.wire.tasks import Task
from tests.support.raising import raises

STAND_IN = Path(__file__).parents[2] / "support" / "kubectl.py"


async def test_a_job_of_one_pod(
    make_task: Callable[..., Task], tmp_path: Path, log: StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands, cluster, app = tmp_path / "bin", tmp_path / "cluster", write_app(tmp_path / "app")
    for folder in (commands, cluster, tmp_path / "shared"):
        folder.mkdir()
    kubectl = commands / "kubectl"
    kubectl.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("KUBE_FOLDER", str(cluster))
    jobs = RankJobs(
        launcher="kubernetes",
        folder=tmp_path / "shared",
        image="fedcore-client",
        claim="shared",
        namespace="fl",
        python=sys.executable,
        poll_seconds=0.2,
    )
    settings = GroupSettings(
        app=app, app_sha256=AppBundle.from_folder(app).sha256, client_id=1, node_config={"site": "north"}
    )
    group = JobGroup(
        settings, Output(name="client-1", stream=log), jobs=jobs, launcher=Kubernetes(jobs), name="fedcore-client-1-00"
    )
    model, out = tmp_path / "global.safetensors", tmp_path / "out.safetensors"
    task = make_task(run="ok", run_config={"mode": "ok"}, seconds=600.0)
    try:
        assert (await group.run(task, model, out)).trained
        [left] = cluster.glob("*.json")
        again = JobGroup(settings, group.output, jobs=jobs, launcher=Kubernetes(jobs), name=group.name)
        assert await again.launcher.cancel_left(again.name) == [left.stem]
        with raises(RankFailed, check=JOB_LOST, match=left.stem):
            await group.run(make_task(run="hang", run_config={"mode": "hang"}, seconds=600.0), model, out)
    finally:
        await group.stop()
    assert not list(cluster.glob("*.json"))
