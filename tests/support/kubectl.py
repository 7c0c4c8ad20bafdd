#!/usr/bin/env python3
"""A stand-in for `kubectl` with a cluster of this machine: create, get and delete a Job, whose pods are processes.

It knows what `client_app.ranks.jobs.kubernetes` asks for, and nothing else. KUBE_FOLDER is where it keeps its jobs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["KUBE_FOLDER"])


def main(words: list[str]) -> None:
    options = dict(word.removeprefix("--").partition("=")[::2] for word in words if word.startswith("--"))
    verb, *names = [word for word in words if not word.startswith("--")]
    if verb == "create":
        create(json.load(sys.stdin))
    elif verb == "get":
        label, _, value = options["selector"].partition("=")
        jobs = [json.loads(path.read_text()) for path in FOLDER.glob("*.json")]
        items = [item for job in jobs for item in (shown(job), *pods(job))]
        of_kinds = [item for item in items if f"{item['kind'].lower()}s" in names[0].split(",")]
        matching = [item for item in of_kinds if item["metadata"]["labels"].get(label) == value]
        if options["output"] == "name":
            sys.stdout.write("".join(f"job.batch/{name(item)}\n" for item in matching))
        else:
            json.dump({"items": matching}, sys.stdout)
    elif verb == "delete":
        delete(names[-1])
    else:
        sys.exit(f"error: unknown command {verb!r}")


def name(job: dict[str, Any]) -> str:
    return str(job["metadata"]["name"])


def create(job: dict[str, Any]) -> None:
    [container] = job["spec"]["template"]["spec"]["containers"]
    job["pids"] = []
    for index in range(job["spec"]["completions"]):
        values = {"$(POD_IP)": "127.0.0.1", "$(JOB_COMPLETION_INDEX)": str(index)}
        command = [values.get(word, word) for word in container["command"]]
        with (FOLDER / f"{name(job)}-{index}.log").open("wb") as log:
            pod = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={"PATH": os.environ["PATH"]},
            )
        job["pids"].append(pod.pid)
    (FOLDER / f"{name(job)}.json").write_text(json.dumps(job))


def running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def pods(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that run. `job-name` is theirs: a Job that comes with labels gets none."""
    labels = {**job["spec"]["template"]["metadata"]["labels"], "job-name": name(job)}
    return [
        {
            "kind": "Pod",
            "metadata": {"name": f"{name(job)}-{index}", "labels": labels},
            "spec": {"nodeName": f"node-{index}"},
            "status": {"phase": "Running"},
        }
        for index, pid in enumerate(job["pids"])
        if running(pid)
    ]


def shown(job: dict[str, Any]) -> dict[str, Any]:
    over = len(pods(job)) < len(job["pids"])
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}
    return {"kind": "Job", "metadata": job["metadata"], "status": {"conditions": [failed] if over else []}}


def delete(job: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        for pid in json.loads((FOLDER / f"{job}.json").read_text())["pids"]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGTERM)
        (FOLDER / f"{job}.json").unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
