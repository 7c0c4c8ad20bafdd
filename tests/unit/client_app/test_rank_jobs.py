"""Jobs of ranks without a scheduler: the table of client.toml, the mailbox, the own model, Kubernetes' manifest."""

from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path
from typing import Any

import pydantic
import pytest

from client_app.ranks.failures import OUT_OF_MEMORY, AppFailed, RankFailed
from client_app.ranks.jobs.group import job_name
from client_app.ranks.jobs.kubernetes import Kubernetes
from client_app.ranks.jobs.launcher import RankJob
from client_app.ranks.jobs.mailbox import Mailbox, make_mailbox
from client_app.ranks.jobs.messages import (
    FROM_HOST,
    TO_HOST,
    Alive,
    HostLeave,
    HostReady,
    error_of,
    failure_of,
)
from client_app.ranks.jobs.own_model import copy_own_model
from fedcore.errors import AppError, KitError, StorageFull, UnknownKey
from fedcore.federation.kits.rank_jobs import RankJobs
from tests.support.raising import raises

POD = {"launcher": "kubernetes", "folder": "/shared", "image": "fedcore-client:0.2.0", "claim": "fedcore"}


def parse(tmp_path: Path, **table: Any) -> RankJobs | None:
    return RankJobs.parse(tmp_path / "kit" / "client.toml", {"ranks": table})


def test_the_table_of_client_toml(tmp_path: Path) -> None:
    assert RankJobs.parse(tmp_path / "client.toml", {}) is None
    jobs = parse(
        tmp_path, launcher="slurm", folder="/shared", gres="gpu:4", extra=["--qos=low"], **{"idle-seconds": 60}
    )
    assert jobs == RankJobs(
        launcher="slurm", folder=Path("/shared"), gres="gpu:4", extra=("--qos=low",), idle_seconds=60.0
    )
    pods = parse(tmp_path, **POD, gpus=2, **{"node-selector": {"gpu": "a100"}})
    assert pods is not None
    assert (pods.gpus, pods.node_selector) == (2, {"gpu": "a100"})


@pytest.mark.parametrize(
    "table",
    [
        {"launcher": "pbs", "folder": "/shared"},
        {"launcher": "slurm"},
        {"launcher": "slurm", "folder": "shared"},
        {"launcher": "slurm", "folder": "/shared", "nodes": 0},
        {"launcher": "slurm", "folder": "/shared", "nodes": True},
        {"launcher": "slurm", "folder": "/shared", "time": "a day"},
        {"launcher": "slurm", "folder": "/shared", "extra": "--qos=low"},
        {"launcher": "kubernetes", "folder": "/shared", "image": "x"},
        {**POD, "node-selector": {"gpu": 1}},
        {**POD, "tolerations": {"key": "nvidia.com/gpu"}},
        {**POD, "tolerations": ["nvidia.com/gpu"]},
        {**POD, "affinity": []},
        {**POD, "image-pull-secrets": "registry"},
        {**POD, "priority-class-name": 5},
    ],
)
def test_a_table_that_cannot_be(tmp_path: Path, table: dict[str, Any]) -> None:
    with raises(KitError):
        parse(tmp_path, **table)


def test_keys_of_another_launcher_are_unknown(tmp_path: Path) -> None:
    with raises(UnknownKey, key="ranks.image"):
        parse(tmp_path, launcher="slurm", folder="/shared", image="x")


def test_a_kit_is_not_where_the_nodes_look(tmp_path: Path) -> None:
    with raises(KitError, check="kit-on-nodes"):
        parse(tmp_path, launcher="slurm", folder=str(tmp_path))


def test_messages_go_both_ways_and_only_complete(tmp_path: Path) -> None:
    make_mailbox(tmp_path / "run")
    agent, host = Mailbox(tmp_path / "run", FROM_HOST, host=False), Mailbox(tmp_path / "run", TO_HOST, host=True)
    agent.post(Alive())
    agent.post(HostLeave())
    assert host.read() == [Alive(), HostLeave()]
    assert host.read() == []
    host.post(HostReady(app_sha256="ab"))
    with (tmp_path / "run" / "from-host").open("ab") as file:
        file.write(b'{"op":"al')
    assert agent.read() == [HostReady(app_sha256="ab")]
    with (tmp_path / "run" / "from-host").open("ab") as file:
        file.write(b'ive"}\n{"op":"else"}\n')
    with pytest.raises(pydantic.ValidationError):
        agent.read()
    assert (tmp_path / "run").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "error",
    [
        AppFailed("Traceback\nValueError: no age", rank=3),
        AppError("wrong records", check="model-file"),
        StorageFull("full"),
        RankFailed("rank 1 is out of memory", OUT_OF_MEMORY),
    ],
)
def test_a_failure_is_the_same_on_both_sides(error: AppError | StorageFull | RankFailed) -> None:
    again = error_of(failure_of(1, error))
    assert (type(again), str(again), again.check) == (type(error), str(error), error.check)


def test_the_own_model_is_copied_and_no_link_is_followed(tmp_path: Path) -> None:
    nodes, agent = tmp_path / "nodes", tmp_path / "agent"
    nodes.mkdir()
    copy_own_model(nodes, agent)
    assert not agent.exists(), "there is none yet"
    (nodes / "model-1.safetensors").write_bytes(b"one")
    (nodes / "record.json").write_text("1")
    copy_own_model(nodes, agent)
    (nodes / "model-1.safetensors").unlink()
    (tmp_path / "identity.key").write_text("secret")
    os.symlink(tmp_path / "identity.key", nodes / "model-3.safetensors")
    (nodes / "model-2.safetensors").write_bytes(b"two")
    (nodes / "record.json").write_text("2")
    copy_own_model(nodes, agent)
    assert {path.name: path.read_text() for path in agent.iterdir()} == {
        "model-2.safetensors": "two",
        "record.json": "2",
    }


def test_the_jobs_of_a_client_have_one_name(tmp_path: Path) -> None:
    name = job_name(tmp_path, "St. Mary's / North")
    assert name.startswith("fedcore-st-mary-s-north-")
    assert job_name(tmp_path, "renamed") == name


def manifest(tmp_path: Path, **table: Any) -> dict[str, Any]:
    """The Job for a table of client.toml, checked against Kubernetes' schemas if they are installed."""
    jobs = parse(tmp_path, **POD, **table)
    assert jobs is not None
    folder = Path("/shared/fedcore-client-1-00/run-abc")
    job = RankJob(name="fedcore-client-1-00", folder=folder, log=folder / "log", nodes=2)
    made = Kubernetes(jobs).manifest(job)
    if importlib.util.find_spec("kubernetes_validate") is not None:
        schemas = importlib.import_module("kubernetes_validate")
        schemas.validate(made, schemas.latest_version(), strict=True)
    return made


def test_the_manifest_of_a_job(tmp_path: Path) -> None:
    made = manifest(tmp_path, nodes=2, gpus=4, memory="64Gi", cpu="8")
    assert made["metadata"]["name"] == "fedcore-client-1-00-abc"
    pod = made["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["resources"]["limits"] == {"memory": "64Gi", "nvidia.com/gpu": "4"}
    assert "/shared/fedcore-client-1-00/run-abc" in container["command"]
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}
    assert not pod.keys() & {"tolerations", "affinity", "nodeSelector", "priorityClassName", "imagePullSecrets"}


def test_where_the_pods_of_a_job_run(tmp_path: Path) -> None:
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    expression = {"key": "nvidia.com/gpu.memory", "operator": "Gt", "values": ["40000"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    table = {
        "gpus": 1,
        "gpu-resource": "nvidia.com/mig-3g.40gb",
        "labels": {"kueue.x-k8s.io/queue-name": "research", "fedcore.io/agent": "another"},
        "node-selector": {"gpu": "a100"},
        "tolerations": tolerations,
        "affinity": affinity,
        "priority-class-name": "research",
        "runtime-class-name": "nvidia",
        "service-account-name": "ranks",
        "image-pull-secrets": ["registry"],
    }
    made = manifest(tmp_path, **table)
    pod = made["spec"]["template"]["spec"]
    expected = {
        "nodeSelector": {"gpu": "a100"},
        "tolerations": tolerations,
        "affinity": affinity,
        "priorityClassName": "research",
        "runtimeClassName": "nvidia",
        "serviceAccountName": "ranks",
        "imagePullSecrets": [{"name": "registry"}],
    }
    assert pod.items() >= expected.items()
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/mig-3g.40gb": "1"}
    for labels in (made["metadata"]["labels"], made["spec"]["template"]["metadata"]["labels"]):
        assert labels["kueue.x-k8s.io/queue-name"] == "research"
        assert labels["fedcore.io/agent"] == "fedcore-client-1-00", "by it an agent finds what it has left"
