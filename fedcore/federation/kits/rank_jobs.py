"""The table `[ranks]` of client.toml: where a client's ranks run if not on the agent's machine."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

from fedcore.errors import UnknownKey
from fedcore.federation.files import broken
from fedcore.system.assignments import type_name

LAUNCHERS: Final = ("slurm", "kubernetes")
_COMMON: Final = frozenset({"launcher", "folder", "nodes", "python", "idle_seconds", "poll_seconds", "extra"})
_OF: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "slurm": frozenset({"partition", "account", "gres", "time"}),
        "kubernetes": frozenset(
            {
                "namespace",
                "image",
                "image_pull_secrets",
                "claim",
                "gpus",
                "gpu_resource",
                "cpu",
                "memory",
                "labels",
                "node_selector",
                "tolerations",
                "affinity",
                "priority_class_name",
                "runtime_class_name",
                "service_account_name",
            }
        ),
    }
)
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({"slurm": (), "kubernetes": ("image", "claim")})
_TABLES: Final = frozenset({"labels", "node_selector", "affinity"})
_TIME = re.compile(r"(\d+-)?\d+(:\d\d){0,2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankJobs:
    """Ranks run in jobs of a cluster, and what the jobs ask for.

    launcher: "slurm" or "kubernetes".
    folder: a folder that the agent and the nodes see under the same path; tasks and models go through it.
    nodes: machines of a job.
    python: the interpreter on the nodes; empty for the one that runs the agent.
    idle_seconds: after so long without a task the job is cancelled, and the next task submits another; 0 for never.
    poll_seconds: between two questions to the scheduler.
    extra: further options of `sbatch`, or of `kubectl`.
    partition, account, gres, time: as `sbatch` has them; empty for the cluster's defaults.
    namespace: empty for that of kubectl's context.
    image: with fedcore inside.
    image_pull_secrets: names of secrets with the registry's password.
    claim: the PersistentVolumeClaim that is mounted at `folder`.
    gpus, gpu_resource: how many of which resource each pod gets.
    cpu, memory: of each pod, as Kubernetes writes them; empty for no request.
    labels: of the Job and its pods, such as the name of a queue.
    node_selector: labels that a node must have.
    tolerations, affinity: as Kubernetes has them in a pod, under its names.
    priority_class_name, runtime_class_name, service_account_name: of each pod; empty for the cluster's defaults.
    """

    launcher: str
    folder: Path
    nodes: int = 1
    python: str = ""
    idle_seconds: float = 600.0
    poll_seconds: float = 5.0
    extra: tuple[str, ...] = ()
    partition: str = ""
    account: str = ""
    gres: str = ""
    time: str = ""
    namespace: str = ""
    image: str = ""
    image_pull_secrets: tuple[str, ...] = ()
    claim: str = ""
    gpus: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    cpu: str = ""
    memory: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    affinity: Mapping[str, Any] = field(default_factory=dict)
    priority_class_name: str = ""
    runtime_class_name: str = ""
    service_account_name: str = ""

    @classmethod
    def parse(cls, path: Path, values: Mapping[str, Any]) -> Self | None:
        """Read the table `ranks` of the file `path`; None if it has none. Raises KitError or UnknownKey."""
        table = values.get("ranks")
        if table is None:
            return None
        launcher = table.get("launcher")
        if launcher not in LAUNCHERS:
            raise broken(path, f"ranks.launcher must be one of {', '.join(LAUNCHERS)}", "mend the line")
        names = {name.replace("_", "-"): name for name in _COMMON | _OF[launcher]}
        for key in table:
            if key not in names:
                raise UnknownKey(f"ranks.{key}", [f"ranks.{name}" for name in names], str(path))
        for name in ("folder", *_NEEDED[launcher]):
            if not table.get(name):
                raise broken(path, f"the key ranks.{name} is missing", "add it", check="missing-key")
        checked = {names[key]: _typed(path, names[key], value) for key, value in table.items()}
        jobs = cls(**checked)
        jobs.check(path)
        return jobs

    def check(self, path: Path) -> None:
        """Raise KitError for a value that cannot be."""
        if not self.folder.is_absolute():
            raise broken(path, "ranks.folder must be an absolute path, the same on every machine", "mend the line")
        if self.nodes < 1 or self.gpus < 0 or self.idle_seconds < 0 or self.poll_seconds <= 0:
            raise broken(path, "ranks.nodes and ranks.poll-seconds must be positive, no number negative", "mend it")
        if self.time and not _TIME.fullmatch(self.time):
            raise broken(path, 'ranks.time must look like "04:00:00" or "2-12:00:00"', "mend the line")
        if path.parent.resolve().is_relative_to(self.folder.resolve()):
            reason = "this kit lies below ranks.folder, which the nodes of the cluster see"
            raise broken(path, reason, "move one of the two: keys stay on the agent's machine", check="kit-on-nodes")


def _typed(path: Path, name: str, value: Any) -> Any:
    """The value of a key as the field of that name has it."""
    default = {one.name: one for one in dataclasses.fields(RankJobs)}[name].default
    kind = type(default) if default is not dataclasses.MISSING else str
    if name in _TABLES:
        of_texts = name != "affinity"
        if isinstance(value, dict) and not (of_texts and any(not isinstance(one, str) for one in value.values())):
            return value
        raise _wrong(path, name, "a table of texts" if of_texts else "a table")
    if kind is tuple:
        element, what = (dict, "tables") if name == "tolerations" else (str, "texts")
        if isinstance(value, list) and all(isinstance(one, element) for one in value):
            return tuple(value)
        raise _wrong(path, name, f"a list of {what}")
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise _wrong(path, name, type_name(kind))
    return Path(value) if name == "folder" else value


def _wrong(path: Path, name: str, what: str) -> Exception:
    return broken(path, f"ranks.{name.replace('_', '-')} must be {what}", "mend the line", check="type")
