"""A new user's ten minutes: the seconds of every step of docs/tutorial/ten-minutes.md, as its reader would type them.

    python benchmarks/ten_minutes.py

prints a row for each block of the page that is run (tests/support/doc_blocks.py). The time to read and to type is the
reader's own; installing is measured by `make demo`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from tests.support.doc_blocks import Block, blocks, runs, script  # noqa: E402
from tests.support.ports import reserved_port  # noqa: E402

PAGE = ROOT / "docs" / "tutorial" / "ten-minutes.md"
_BEGAN = re.compile(r"^=== (\S+) after (\d+) s$", re.MULTILINE)


def main() -> None:
    """Run the page in an empty folder and print the table."""
    with tempfile.TemporaryDirectory() as folder, reserved_port() as port:
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": folder}
        command = ["bash", "-c", script(PAGE, port) + '\nprintf "\\n=== end after %s s\\n" "$SECONDS"\n']
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
    began = [(name, int(after)) for name, after in _BEGAN.findall(done.stdout)]
    print(f"| step | seconds |\n| --- | ---: |\n{_rows(began)}| all | {began[-1][1]} |")


def _rows(began: list[tuple[str, int]]) -> str:
    known = {block.name: block for block in blocks(PAGE) if runs(block)}
    return "".join(f"| {_step(known[name])} | {later - since} |\n" for (name, since), (_, later) in pairwise(began))


def _step(block: Block) -> str:
    if path := block.marks.get("file"):
        return f"save `{path}`"
    return "a program that uses the model" if block.language == "python" else f"`{block.text.strip().splitlines()[0]}`"


if __name__ == "__main__":
    main()
