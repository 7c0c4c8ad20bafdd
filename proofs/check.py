"""Checks what is proved about the protocol: lemmas by Coq. `make proof` runs it.

    python proofs/check.py            a line for each theorem, and the axioms that it stands on
    python proofs/check.py --json     the same as one JSON object

A tool that is not installed is skipped with the command that installs it on Debian. Ends with status 1 if anything
fails or needs an axiom.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).parent
COQ = (
    "quorum", "masks", "packing", "shamir", "ring", "hypergeometric", "graph_row", "graph_table", "graph"
)  # fmt: skip
"""In the order of their imports."""
CLOSED = "Closed under the global context"
INSTALL = {"coqc": "apt-get install coq libcoq-mathcomp-algebra"}


@dataclass(frozen=True)
class Theorem:
    """name: as in its file. axioms: what it stands on beside the logic of Coq, empty if on nothing."""

    file: str
    name: str
    axioms: str


class Failed(Exception):
    """A file that its tool refuses; the message is the tool's."""


def coq_theorems(folder: Path) -> list[Theorem]:
    """Compile every file in `folder`, a copy, and read what each theorem stands on."""
    theorems = []
    for name in COQ:
        text = (folder / f"{name}.v").read_text()
        command = ["coqc", "-w", "none", "-Q", ".", "fedcore", f"{name}.v"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(f"{name}.v: {done.stderr.strip()}")
        if re.search(r"\b(Admitted|admit|Axiom|Parameter)\b", text):
            raise Failed(f"{name}.v admits something")
        printed = re.findall(r"^Print Assumptions (\w+)\.", text, re.MULTILINE)
        answers = re.split(rf"(?={CLOSED}|Axioms:)", done.stdout)[1:]
        theorems += [
            Theorem(f"{name}.v", theorem, "" if CLOSED in answer else answer.strip())
            for theorem, answer in zip(printed, answers, strict=True)
        ]
    return theorems


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    as_json = parser.parse_args().json
    if shutil.which("coqc") is None:
        print(json.dumps({"skipped": "coqc"}) if as_json else f"skipped: coqc is not installed ({INSTALL['coqc']})")
        return
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(shutil.copytree(HERE / "coq", Path(folder) / "coq"))
        try:
            theorems = coq_theorems(copied)
        except Failed as failed:
            sys.exit(str(failed))
    seconds = round(time.monotonic() - start, 1)
    if as_json:
        print(json.dumps({"theorems": [asdict(theorem) for theorem in theorems], "seconds": seconds}))
    else:
        for theorem in theorems:
            print(f"{theorem.file:20} {theorem.name:36} {theorem.axioms or 'no axioms'}")
        print(f"{len(theorems)} theorems, {seconds} s")
    if any(theorem.axioms for theorem in theorems):
        sys.exit("a theorem stands on an axiom")


if __name__ == "__main__":
    main()
