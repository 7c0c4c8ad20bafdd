"""How many cores a process gets, by its control groups and its job."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedcore.system.workers.cores import allowed_cores, granted_cores


def lay(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_limits_it_gets_those_that_it_may_run_on(tmp_path: Path) -> None:
    assert granted_cores(tmp_path, {}) == allowed_cores()
    lay(tmp_path / "proc/self/cgroup", "0::/\n")
    lay(tmp_path / "sys/fs/cgroup/cpu.max", "max 100000\n")
    assert granted_cores(tmp_path, {"SLURM_CPUS_ON_NODE": "10000"}) == allowed_cores()


@pytest.mark.parametrize(("quota", "cores"), [("150000", 1), ("20000", 1), ("99900000", allowed_cores())])
def test_a_limit_of_a_container_counts(tmp_path: Path, quota: str, cores: int) -> None:
    second, first = tmp_path / "v2", tmp_path / "v1"
    lay(second / "proc/self/cgroup", "0::/pods/one\n")
    lay(second / "sys/fs/cgroup/pods/cpu.max", f"{quota} 100000\n")
    assert granted_cores(second, {}) == cores
    lay(first / "proc/self/cgroup", "4:cpu,cpuacct:/docker/abc\n0::/\n")
    lay(first / "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", f"{quota}\n")
    lay(first / "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert granted_cores(first, {}) == cores
    lay(first / "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
    assert granted_cores(first, {}) == allowed_cores()


def test_a_job_has_what_the_cluster_gave_it(tmp_path: Path) -> None:
    assert granted_cores(tmp_path, {"SLURM_CPUS_ON_NODE": "1"}) == 1
    assert granted_cores(tmp_path, {"SLURM_CPUS_ON_NODE": "odd"}) == allowed_cores()
