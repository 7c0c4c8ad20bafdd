"""The process that runs the owner's ClientApp: loads it once, then one task after another.

Started by `client_app.workers` as `python -m client_app.worker`. It speaks JSON lines over a socket that it inherits,
never over standard output, because user code prints. Models travel as safetensors files, by path. When the agent goes
away, however it ends, the socket closes and the worker ends itself with all processes that the app started.

    agent -> worker   {"app": ..., "client_id": ..., "node_config": {...}}                     once
    worker -> agent   {"ready": true, "app_sha256": ...} or {"failed": KIND, "text": ...}
    agent -> worker   {"task": {...}, "model": PATH or null, "out": PATH}                      repeated
    worker -> agent   {"examples": ..., "metrics": {...}, "trained": true} or {"failed": KIND, "text": ...}
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import socket
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from fedcore.flower.clientside import ClientRunner

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

Requests = queue.SimpleQueue[dict[str, Any]]


def main() -> None:
    """Serve requests until the agent closes the socket."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channel", type=int, required=True, help="descriptor of the socket to the agent")
    channel = socket.socket(fileno=parser.parse_args().channel)
    requests: Requests = queue.SimpleQueue()
    # A thread of its own reads, so that the end of the agent shows while user code runs.
    threading.Thread(target=_read, args=(channel.makefile(encoding="utf-8"), requests), daemon=True).start()
    answers = channel.makefile("w", encoding="utf-8")
    runner = _load(requests.get(), answers)
    while runner is not None:
        _answer(answers, _run(runner, requests.get()))


def _read(lines: TextIO, requests: Requests) -> None:
    try:
        for line in lines:
            requests.put(json.loads(line))
    finally:
        _end()


def _end() -> None:
    """End this process and its group; only its own group, should somebody have started it by hand."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _load(request: dict[str, Any], answers: TextIO) -> ClientRunner | None:
    """Import the app; without it there is nothing to serve."""
    try:
        from fedcore.flower.app import FlowerApp
        from fedcore.flower.bundle import AppBundle
        from fedcore.flower.clientside import ClientRunner

        folder = Path(request["app"])
        sha256 = AppBundle.from_folder(folder).sha256
        runner = ClientRunner(
            app=FlowerApp.load(folder), client_id=request["client_id"], node_config=request["node_config"]
        )
    except BaseException as error:
        _answer(answers, _failure(error))
        return None
    _answer(answers, {"ready": True, "app_sha256": sha256})
    return runner


def _run(runner: ClientRunner, request: dict[str, Any]) -> dict[str, Any]:
    from fedcore.state import ModelState
    from fedcore.wire import Task

    try:
        model = ModelState.open(Path(request["model"])) if request["model"] else None
        result = runner.run(Task.model_validate(request["task"]), model)
        result.save(Path(request["out"]))
    except BaseException as error:  # an app may raise SystemExit too, and the next task finds a warm worker
        return _failure(error)
    return {
        "examples": result.examples,
        "metrics": dict(result.metrics),
        "trained": result.trained,
    }


def _failure(error: BaseException) -> dict[str, Any]:
    """What the agent's own log gets; of this only the kind ever leaves the machine."""
    from fedcore.errors import AppError, StorageFull

    if isinstance(error, StorageFull):
        return {"failed": "storage-full", "text": str(error)}
    if isinstance(error, AppError):
        return {"failed": "wrong-records", "text": str(error)}
    return {"failed": "app-failed", "text": "".join(traceback.format_exception(error))}


def _answer(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
