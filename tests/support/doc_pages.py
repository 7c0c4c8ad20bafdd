"""A page of the documentation, done as its reader does it; each file of tests has some, to be run beside others."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.deployment import PATIENCE
from support.doc_blocks import PAGES, ROOT, blocks, runs, script
from support.doc_commands import commands
from support.ports import reserved_port

FIRST = ("README.md", "docs/tutorial/ten-minutes.md")
"""What a stranger reads first; each starts a federation."""

AS_THEY_STAND = ("README.md",)
"""Pages whose commands all start by themselves."""

OPERATING = tuple(f"docs/howto/{name}.md" for name in ("operating", "client", "runs", "verify", "proxy"))
"""How a federation is run: each page goes on with what those before it started."""


WITH_DATA = ("docs/tutorial/study.md",)
"""Pages whose reader has a published data set in the folder; a test of their own brings it."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def others() -> list[str]:
    """All other pages on which something is run, by their name."""
    mine = {*FIRST, *OPERATING, *WITH_DATA}
    return [name_of(page) for page in PAGES if name_of(page) not in mine and any(map(runs, blocks(page)))]


def do_pages(names: Sequence[str], folder: Path) -> None:
    """Run all that the pages, one after the other, tell their reader to type, in an empty folder.

    Fails with what was printed last.

    The first page of all starts each command as its reader does; those of the others are forked, which spares their
    imports.
    """
    environment = {
        name: value for name, value in os.environ.items() if name not in ("FEDCORE_DATA", "VIRTUAL_ENV", "PYTHONPATH")
    } | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "COLUMNS": "120",
        "OMP_NUM_THREADS": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
    }
    log = folder / "page.log"
    started = commands() if set(AS_THEY_STAND).isdisjoint(names) else contextlib.nullcontext("")
    with log.open("w") as out, reserved_port() as port, started as forked:
        process = subprocess.Popen(
            ["bash", "-c", script([ROOT / name for name in names], port, forked)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(PATIENCE)
        finally:
            # Servers and clients that the page starts go on when its last command is done; what they started ends with
            # them.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert status == 0, log.read_text(errors="replace")[-6000:]
