"""Jobs of Kubernetes, by `kubectl`: one pod for each machine of a group, found by its index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from client_app.ranks.jobs.launcher import HOST_MODULE, JobState, RankJob, scheduler_output
from fedcore.federation.kits.rank_jobs import RankJobs

_AGENT: Final = "fedcore.io/agent"
_JOB: Final = "fedcore.io/job"
"""Of a Job and its pods: Kubernetes' own label `job-name` is on the pods alone."""
_USER: Final = 10001
"""Of fedcore's images."""


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """A cluster as this machine's `kubectl` reaches it."""

    jobs: RankJobs

    async def submit(self, job: RankJob) -> str:
        manifest = self.manifest(job)
        await self._kubectl("create", "--filename=-", stdin=json.dumps(manifest))
        return str(manifest["metadata"]["name"])

    async def look(self, job: str) -> JobState:
        out = await self._kubectl("get", "jobs,pods", f"--selector={_JOB}={job}", "--output=json")
        items = json.loads(out)["items"]
        pods = [item for item in items if item["kind"] == "Pod"]
        for item in items:
            for condition in item.get("status", {}).get("conditions", ()) if item["kind"] == "Job" else ():
                if condition["type"] in ("Failed", "Complete") and condition["status"] == "True":
                    why = condition.get("reason") or condition["type"]
                    return JobState("over", f"{condition['type']} ({'; '.join([why, *_reasons(pods)])})")
        if not any(item["kind"] == "Job" for item in items):
            return JobState("over", "deleted")
        if len(pods) == self.jobs.nodes and all(pod["status"].get("phase") == "Running" for pod in pods):
            return JobState("running", f"Running on {', '.join(sorted(pod['spec']['nodeName'] for pod in pods))}")
        return JobState("waiting", f"Pending ({'; '.join(_reasons(pods)) or 'no pod yet'})")

    async def cancel(self, job: str) -> None:
        await self._kubectl("delete", "job", job, "--ignore-not-found", "--cascade=background", "--wait=false")

    async def cancel_left(self, name: str) -> list[str]:
        names = await self._kubectl("get", "jobs", f"--selector={_AGENT}={name}", "--output=name")
        left = [text.rpartition("/")[2] for text in names.split()]
        for job in left:
            await self.cancel(job)
        return left

    def log_of(self, job: RankJob, number: str) -> str:
        namespace = f" --namespace={self.jobs.namespace}" if self.jobs.namespace else ""
        return f"`kubectl logs job/{number} --all-pods{namespace}`"

    def manifest(self, job: RankJob) -> dict[str, Any]:
        """The Job. A pod that ends is not started again: the agent submits another job."""
        name = f"{job.name}-{job.folder.name.removeprefix('run-')}"
        own = {_AGENT: job.name, _JOB: name, "app.kubernetes.io/name": "fedcore-ranks"}
        labels = {**self.jobs.labels, **own}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "completions": self.jobs.nodes,
                "parallelism": self.jobs.nodes,
                "completionMode": "Indexed",
                "backoffLimit": 0,
                "ttlSecondsAfterFinished": 3600,
                "template": {"metadata": {"labels": labels}, "spec": self._pod(job)},
            },
        }

    def _pod(self, job: RankJob) -> dict[str, Any]:
        pod: dict[str, Any] = {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 30,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _USER,
                "runAsGroup": _USER,
                "fsGroup": _USER,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [self._container(job)],
            "volumes": [
                {"name": "shared", "persistentVolumeClaim": {"claimName": self.jobs.claim}},
                {"name": "tmp", "emptyDir": {}},
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
            ],
        }
        chosen = {
            "imagePullSecrets": [{"name": name} for name in self.jobs.image_pull_secrets],
            "nodeSelector": dict(self.jobs.node_selector),
            "tolerations": list(self.jobs.tolerations),
            "affinity": dict(self.jobs.affinity),
            "priorityClassName": self.jobs.priority_class_name,
            "runtimeClassName": self.jobs.runtime_class_name,
            "serviceAccountName": self.jobs.service_account_name,
        }
        return pod | {key: value for key, value in chosen.items() if value}

    def _container(self, job: RankJob) -> dict[str, Any]:
        position = ["--node", "$(JOB_COMPLETION_INDEX)", "--address", "$(POD_IP)"]
        python = self.jobs.python or "python"
        return {
            "name": "ranks",
            "image": self.jobs.image,
            "command": [python, "-P", "-s", "-B", "-m", HOST_MODULE, str(job.folder), *position],
            "env": [
                {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {
                    "name": "JOB_COMPLETION_INDEX",
                    "valueFrom": {
                        "fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
                    },
                },
            ],
            "resources": self._resources(),
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": [
                {"name": "shared", "mountPath": str(self.jobs.folder)},
                {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - inside the pod
                {"name": "memory", "mountPath": "/dev/shm"},  # noqa: S108
            ],
        }

    def _resources(self) -> Mapping[str, Any]:
        asks = {name: value for name, value in (("cpu", self.jobs.cpu), ("memory", self.jobs.memory)) if value}
        gpus = {self.jobs.gpu_resource: str(self.jobs.gpus)} if self.jobs.gpus else {}
        limits = {**({"memory": self.jobs.memory} if self.jobs.memory else {}), **gpus}
        return {key: value for key, value in (("requests", {**asks, **gpus}), ("limits", limits)) if value}

    async def _kubectl(self, *command: str, stdin: str = "") -> str:
        namespace = [f"--namespace={self.jobs.namespace}"] if self.jobs.namespace else []
        return await scheduler_output("kubectl", *namespace, *self.jobs.extra, *command, stdin=stdin)


def _reasons(pods: list[dict[str, Any]]) -> list[str]:
    """Why pods wait or have ended, in Kubernetes' words."""
    reasons: dict[str, None] = {}
    for pod in pods:
        status = pod.get("status", {})
        texts = [status.get("reason"), *(one.get("reason") for one in status.get("conditions", ()))]
        for container in status.get("containerStatuses", ()):
            texts += [state.get("reason") for state in container.get("state", {}).values()]
        node = pod.get("spec", {}).get("nodeName")
        reasons |= {f"{text} on {node}" if node else text: None for text in texts if text}
    return list(reasons)
