"""How many cores a process may keep busy, which in containers and jobs is fewer than the machine has."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fedcore.system.memory import groups_above

_JOB_CORES: Final = "SLURM_CPUS_ON_NODE"
"""What SLURM gave a job on this machine; it binds processes to cores only if the cluster is set up so."""


def allowed_cores() -> int:
    """On how many cores this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def granted_cores(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> int:
    """How many cores' worth of time this process gets: with more threads, some of them stand still in turn.

    Args:
        root: where /proc and /sys are.
        environment: of this process, which has SLURM's variables in a job.
    """
    job = environment.get(_JOB_CORES, "")
    shares = [allowed_cores(), *_quotas(root), *([int(job)] if job.isdecimal() else [])]
    return max(1, int(min(shares)))


def _quotas(root: Path) -> list[float]:
    """The cores that each limit of the control groups of this process leaves it."""
    quotas = list[float]()
    for group in groups_above(root, "0::", "sys/fs/cgroup"):
        with contextlib.suppress(OSError, ValueError):  # no such file here, or no limit: "max"
            quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
            quotas.append(int(quota) / int(period))
    for mark, folder in ((":cpu,cpuacct:", "cpu,cpuacct"), (":cpu:", "cpu")):
        for group in groups_above(root, mark, f"sys/fs/cgroup/{folder}"):
            with contextlib.suppress(OSError, ValueError):
                quota, period = (
                    (group / f"cpu.cfs_{name}_us").read_text(encoding="ascii") for name in ("quota", "period")
                )
                if int(quota) > 0:  # -1 is no limit
                    quotas.append(int(quota) / int(period))
    return quotas
