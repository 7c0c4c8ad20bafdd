"""A new user's path: the seconds of every step of a page, as its reader would type them.

    python benchmarks/ten_minutes.py [--page howto/joining]

The page is the tutorial (tutorial/ten-minutes), or howto/joining: from tables to a model at sites with keys of their
own, where one joins, one leaves and one gets a new key. It prints a row for each block of the page that is run
(tests/support/doc_blocks.py). The time to read and to type is the
reader's own; installing is measured by `make demo`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.common import Figure, Report, Table, parser, run, sized
from fedcore.errors import RunFailed
from tests.support.doc_blocks import Block, blocks, runs, script
from tests.support.ports import reserved_port

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = ("tutorial/ten-minutes", "howto/joining")
SMALLEST_BLOCKS = 2
_BEGAN = re.compile(r"^=== (\S+) after (\d+) s$", re.MULTILINE)


def main() -> int:
    """The command line."""
    options = parser("The seconds of every step of a new user's path.")
    options.add_argument("--page", choices=PAGES, default=PAGES[0], help="which page of docs (default: %(default)s)")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """Run the page in an empty folder."""
    path = DOCS / f"{arguments.page}.md"
    most = sized(arguments, smallest=SMALLEST_BLOCKS, quick=None, whole=None)
    with tempfile.TemporaryDirectory() as folder, reserved_port() as port:
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": folder}
        page = script([path], port, most=most) + '\nprintf "\\n=== end after %s s\\n" "$SECONDS"\n'
        typed = subprocess.Popen(
            ["bash", "-c", page], cwd=folder, env=environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            told, _ = typed.communicate()
        finally:  # the server and the clients of the page, too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(typed.pid, signal.SIGTERM)
    if typed.returncode:
        raise RunFailed(f"the page does not run:\n{told[-4000:]}")
    began = [(name, int(after)) for name, after in _BEGAN.findall(told)]
    known = {block.name: block for block in blocks(path) if runs(block)}
    rows = tuple((_step(known[name]), str(later - since)) for (name, since), (_, later) in pairwise(began))
    return Report(
        benchmark="ten_minutes",
        figures=(Figure(name="minutes", value=began[-1][1] / 60, unit="minutes", aim=10.0),),
        tables=(Table(title="Steps", header=("step", "seconds"), rows=(*rows, ("all", str(began[-1][1])))),),
    )


def _step(block: Block) -> str:
    if path := block.marks.get("file"):
        return f"save `{path}`"
    return "a program that uses the model" if block.language == "python" else f"`{block.text.strip().splitlines()[0]}`"


if __name__ == "__main__":
    sys.exit(main())
