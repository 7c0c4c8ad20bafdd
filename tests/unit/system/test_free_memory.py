"""How much memory a process may still take, by the machine and by the limits of its container."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedcore.system.memory import free_memory

KIB = 1 << 10


@pytest.fixture
def root(tmp_path: Path) -> Path:
    lay(
        tmp_path / "proc/meminfo",
        "MemTotal: 9000 kB\nMemAvailable:    5000 kB\nSwapFree: 1000 kB\nHugePages: 0\n",
    )
    return tmp_path


def lay(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def limit(group: Path, most: str, current: int, cached: int) -> None:
    lay(group / "memory.max", f"{most}\n")
    lay(group / "memory.current", f"{current}\n")
    lay(group / "memory.stat", f"anon 5\nactive_file {cached}\ninactive_file 1\n")


def test_without_limits_it_is_what_the_machine_has(root: Path) -> None:
    assert free_memory(root) == 6000 * KIB


def test_each_limit_from_the_own_group_up_counts(root: Path) -> None:
    lay(root / "proc/self/cgroup", "1:name=systemd:/x\n0::/machine/agent\n")
    groups = root / "sys/fs/cgroup"
    limit(groups / "machine/agent", "max", 7000, 0)
    assert free_memory(root) == 6000 * KIB
    limit(groups / "machine", "10000", 9000, 500)
    assert free_memory(root) == 1501
    limit(groups / "machine/agent", "8000", 7000, 299)
    assert free_memory(root) == 1300
    limit(groups, "100", 900, 0)
    assert free_memory(root) == 0


def test_limits_of_the_first_version_count_too(root: Path) -> None:
    lay(root / "proc/self/cgroup", "4:memory:/docker/abc\n3:cpuset:/docker/abc\n0::/\n")
    groups = root / "sys/fs/cgroup/memory"  # of a container, which has its own group in the place of the topmost
    lay(groups / "memory.limit_in_bytes", "10000\n")
    lay(groups / "memory.usage_in_bytes", "9000\n")
    lay(groups / "memory.stat", "total_active_file 100\ntotal_inactive_file 1\nactive_file 7\n")
    assert free_memory(root) == 1101


def test_elsewhere_nobody_knows(tmp_path: Path) -> None:
    assert free_memory(tmp_path) is None
    lay(tmp_path / "proc/meminfo", "MemTotal: 9000 kB\n")
    assert free_memory(tmp_path) is None
