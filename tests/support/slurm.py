"""SLURM on this machine: munged, slurmctld and two slurmd in a folder of their own, with ports of their own.

Needs Debian's slurm-wlm and munge, and root, since slurmd starts jobs as their user.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .deployment import wait_until
from .ports import reserved_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel")
NODES = ("n0", "n1")

_CONFIGURATION = """
ClusterName=fedcoretest
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
KillWait=2
SlurmdTimeout=30
SchedulerParameters=bf_interval=1,sched_interval=1
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 State=UNKNOWN
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """What is missing for a cluster; empty if nothing is."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    absent = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if absent:
        return f"there is no {absent[0]}: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "slurmd needs root"


@dataclass(slots=True)
class Cluster:
    """Two nodes with a processor each, in the partition `main`."""

    folder: Path
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def configuration(self) -> Path:
        """What SLURM_CONF names."""
        return self.folder / "slurm.conf"

    def command(self, *words: str) -> str:
        """What a command of SLURM prints."""
        return subprocess.run(
            words, env={**os.environ, "SLURM_CONF": str(self.configuration)}, check=True, capture_output=True, text=True
        ).stdout

    def jobs(self) -> list[str]:
        """Numbers of the jobs that wait or run."""
        return self.command("squeue", "--noheader", "--format=%A").split()

    def start(self, name: str, *words: str) -> None:
        """Start one of its programs, in the foreground."""
        with (self.folder / f"{name}.out").open("ab") as out:
            path = f"{os.environ['PATH']}:/usr/sbin"
            command = [str(shutil.which(words[0], path=path)), *words[1:]]
            environment = {**os.environ, "SLURM_CONF": str(self.configuration), "PATH": path}
            self.daemons[name] = subprocess.Popen(command, stdout=out, stderr=out, env=environment)

    def start_node(self, name: str) -> None:
        """Start the slurmd of a node."""
        self.start(name, "slurmd", "-D", "-N", name, "-f", str(self.configuration))

    def kill_node(self, name: str) -> None:
        """As if its machine lost power, jobs and all."""
        daemon = self.daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def stop(self) -> None:
        """Cancel all jobs and end all its programs."""
        with contextlib.suppress(subprocess.CalledProcessError, AssertionError):
            for job in self.jobs():
                self.command("scancel", job)
            wait_until("no job to be left", lambda: not self.jobs(), 30)
        for daemon in reversed(self.daemons.values()):
            daemon.terminate()
        for daemon in self.daemons.values():
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster whose nodes are idle."""
    folder.mkdir(mode=0o755, parents=True)
    for name in ("state", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    made = Cluster(folder)
    with contextlib.ExitStack() as ports:
        numbers = [ports.enter_context(reserved_port()) for _ in range(3)]
        host = socket.gethostname().partition(".")[0]
        made.configuration.write_text(_CONFIGURATION.format(host=host, ports=numbers, folder=folder))
        words = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid", "seed-file": "munge.seed"}
        options = [f"--{name}={folder / file}" for name, file in words.items()]
        try:
            made.start("munged", "munged", "--foreground", "--force", f"--log-file={folder}/munged.log", *options)
            wait_until("munged", (folder / "munge.sock").exists, 30)
            made.start("slurmctld", "slurmctld", "-D", "-i", "-f", str(made.configuration))
            for node in NODES:
                made.start_node(node)
            wait_until("idle nodes", lambda: _idle(made), 60)
            yield made
        finally:
            made.stop()


def _idle(made: Cluster) -> bool:
    with contextlib.suppress(subprocess.CalledProcessError):
        return made.command("sinfo", "--noheader", "--format=%T %D").split() == ["idle", "2"]
    return False


if __name__ == "__main__":  # a cluster for a person: python -m support.slurm FOLDER, until the input ends
    with cluster(Path(sys.argv[1]).absolute()) as running:
        sys.stdout.write(f"export SLURM_CONF={running.configuration}\n")
        sys.stdout.flush()
        sys.stdin.read()
