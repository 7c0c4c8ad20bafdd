"""`fedcore demo --open`: a small real federation that keeps training while a browser shows its page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import webbrowser
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from fedcore.cli.demo import SITES
from fedcore.comparison.federation import follow
from fedcore.comparison.local_federation import FEDCORE, LocalFederation, run_command
from fedcore.errors import EnvironmentFailure
from fedcore.flower.app import FlowerApp
from fedcore.monitoring.progress import ProgressView
from fedcore.run.settings import ROUNDS_KEY
from fedcore.system.workers.child_processes import ChildProcesses
from fedcore.wire.events import ClientsOnline, RunEvent

ROUNDS: Final = 200
"""Some minutes of something to watch."""
_LINK_SECONDS: Final = 60.0
_WATCH_SECONDS: Final = 1.0


def leave_open(app: FlowerApp, console: Console, *, as_json: bool) -> None:
    """Train until Ctrl-C, and stay after the last round; nothing is left then.

    Raises EnvironmentFailure, with the end of its log, for a process that ends by itself.
    """
    with tempfile.TemporaryDirectory(prefix="fedcore-demo-") as name, ChildProcesses(Path(name) / "logs") as group:
        try:
            _train(app, Path(name), group, console, as_json=as_json)
            while True:
                group.check()
                time.sleep(_WATCH_SECONDS)
        except KeyboardInterrupt:
            console.print("ending the server and the clients")


def _train(app: FlowerApp, folder: Path, group: ChildProcesses, console: Console, *, as_json: bool) -> None:
    local = LocalFederation.create(folder / "federation", clients=SITES, name="demo")
    local.start_server(group)
    local.start_clients(group, app.folder)
    config = {ROUNDS_KEY: ROUNDS}
    command = run_command(app.folder, local.operator, out=folder / "model.safetensors", run_config=config, settings={})
    page = _Page(operator=local.operator, console=console, as_json=as_json)
    with ProgressView(console, "demo") as view:

        def show(event: RunEvent) -> None:
            view.show(event)
            page.see(event)

        follow(group, group.start("run", command, piped=True), show)
    console.print("the run is over, and the page stays; Ctrl-C ends everything", highlight=False)


@dataclass(slots=True)
class _Page:
    """The server's page, opened by a read-only link as soon as the server answers."""

    operator: Path
    console: Console
    as_json: bool
    _opened: bool = field(default=False)

    def see(self, event: RunEvent) -> None:
        """Take an event of the run."""
        if not self._opened and isinstance(event, ClientsOnline):
            self._opened = True
            self._open(_link(self.operator))

    def _open(self, link: dict[str, Any]) -> None:
        if self.as_json:
            sys.stdout.write(json.dumps(link) + "\n")
            sys.stdout.flush()
        opened = has_screen() and webbrowser.open(link["url"])
        what = "the page is open in your browser" if opened else "open this page in a browser"
        self.console.print(f"{what}: {link['url']}", highlight=False, soft_wrap=True)
        self.console.print(
            "the browser warns you, because this federation has just made its own certificate authority; accept it. "
            "Ctrl-C ends everything",
            highlight=False,
            soft_wrap=True,
        )


def _link(operator: Path) -> dict[str, Any]:
    """A read-only link; raises EnvironmentFailure if the server gives none."""
    command = [*FEDCORE, "federation", "link", "--operator", str(operator), "--label", "demo", "--days", "1", "--json"]
    done = subprocess.run(  # noqa: S603 - our own words
        command, capture_output=True, text=True, check=False, timeout=_LINK_SECONDS
    )
    if done.returncode:
        raise EnvironmentFailure(f"the server gave no link to its page: {done.stderr.strip()}")
    return dict(json.loads(done.stdout))


def has_screen() -> bool:
    """Whether a browser has somewhere to open; one for terminals would take this one."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
