"""Jobs of SLURM, by `sbatch`, `squeue` and `scancel`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from typing import Final

from client_app.ranks.failures import RankFailed
from client_app.ranks.jobs.launcher import HOST_MODULE, JobState, RankJob, scheduler_output
from fedcore.federation.kits.rank_jobs import RankJobs

_WAITING: Final = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
_RUNNING: Final = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})
_UNKNOWN_JOB: Final = "Invalid job id"


@dataclass(frozen=True, slots=True)
class Slurm:
    """SLURM as this machine's commands reach it."""

    jobs: RankJobs

    async def submit(self, job: RankJob) -> str:
        options = {
            "job-name": job.name,
            "nodes": str(job.nodes),
            "output": str(job.log),
            "chdir": str(job.folder),
            "partition": self.jobs.partition,
            "account": self.jobs.account,
            "gres": self.jobs.gres,
            "time": self.jobs.time,
            # The agent's variables stay here, its tokens among them.
            "export": ",".join(job.variables) or "NIL",
        }
        chosen = [f"--{name}={value}" for name, value in options.items() if value]
        fixed = ("--parsable", "--ntasks-per-node=1", "--no-requeue", "--open-mode=append")
        out = await scheduler_output("sbatch", *fixed, *chosen, *self.jobs.extra, stdin=self._script(job))
        return out.strip().partition(";")[0]  # "number;cluster" on a machine of several clusters

    async def look(self, job: str) -> JobState:
        try:
            out = await scheduler_output("squeue", "--states=all", "--noheader", "--format=%T|%r|%N", f"--jobs={job}")
        except RankFailed as error:
            if _UNKNOWN_JOB in str(error):  # it ended some minutes ago
                return JobState("over", "no longer known to SLURM")
            raise
        state, reason, nodes = [*out.strip().split("|"), "", ""][:3]
        if state in _WAITING:
            return JobState("waiting", f"{state} ({reason})")
        text = f"{state} on {nodes}" if nodes else state or "no longer known to SLURM"
        return JobState("running" if state in _RUNNING else "over", text)

    async def cancel(self, job: str) -> None:
        await scheduler_output("scancel", "--quiet", job)

    async def cancel_left(self, name: str) -> list[str]:
        out = await scheduler_output("squeue", "--me", "--noheader", "--format=%A", f"--name={name}")
        left = sorted(set(out.split()))
        for job in left:
            await self.cancel(job)
        return left

    def log_of(self, job: RankJob, number: str) -> str:
        return str(job.log).replace("%j", number)

    def _script(self, job: RankJob) -> str:
        host = shlex.join([self.jobs.python or sys.executable, "-P", "-s", "-B", "-m", HOST_MODULE, str(job.folder)])
        step = "srun --export=ALL --kill-on-bad-exit=1 --wait=30"
        inner = f'exec {host} --node "$SLURM_NODEID" --address "$SLURM_LAUNCH_NODE_IPADDR"'
        return f"#!/bin/sh\nexec {step} /bin/sh -c {shlex.quote(inner)}\n"
