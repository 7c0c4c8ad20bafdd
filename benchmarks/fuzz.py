"""Every parser of a peer's bytes against mutations of real messages: none may crash, hang or take much memory.

    python benchmarks/fuzz.py [--inputs N] [--processes N] [--seed S] [--folder FOLDER] [--parser NAME] [--json]

The real messages are those of one federation, recorded in this process (`tests/support/fuzz_seeds.py`); the parsers are
in `tests/support/fuzz_parsers.py`. A crash is any exception that the parser is not documented to raise, an input of
some kilobytes that takes seconds, or hundreds of MB. With --folder what was done is kept there, and what was found: the
same command goes on where the last one was stopped. With --guided atheris, where it is installed, looks for inputs that
reach new code of some of the parsers, for that many seconds each.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing.util import Finalize
from pathlib import Path
from time import perf_counter
from typing import Any

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.common import Figure, Report, Table, parser, quiet_environment, run, say, sized
from tests.support.fuzz_parsers import parsers
from tests.support.fuzz_seeds import record
from tests.support.fuzzing import Finding, Parser, run_block

INPUTS = 200_000
QUICK_INPUTS = 20_000
SMALLEST = "message Task"
"""The one parser that `--smallest` feeds."""
BLOCK = 2000
"""Inputs of one parser in a row."""
GUIDED = ("message Task", "record file", "safetensors", "signature of a head", "rosters", "round: delivery at a client")
"""What atheris looks at: parsers of our own code, where new branches say something."""
IN_MEMORY = Path("/dev/shm")  # a folder of the system's, for files that nobody keeps


@dataclass(slots=True)
class Done:
    """What was fed so far, and what was found. folder: where it is kept; None for nowhere."""

    folder: Path | None
    blocks: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    findings: dict[tuple[str, str], Finding] = field(default_factory=dict)

    def load(self, seed: int) -> None:
        """What an earlier start with this seed did."""
        if self.folder is not None and (file := self.folder / f"done-{seed}.json").exists():
            kept = json.loads(file.read_text())
            self.blocks, self.seconds = Counter(kept["blocks"]), kept["seconds"]
            for found in kept["findings"]:
                one = Finding(**{**found, "content": base64.b64decode(found["content"])})
                self.findings[one.parser, one.what] = one

    def note(self, name: str, seconds: float, found: Sequence[Finding], seed: int) -> None:
        """One block is done."""
        self.blocks[name] += 1
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        for one in found:
            if (one.parser, one.what) not in self.findings:
                say(f"{one.parser}: {one.what}\n{one.trace}")
            self.findings.setdefault((one.parser, one.what), one)
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            draft = self.folder / "done.part"
            draft.write_text(json.dumps(self._plain()))
            draft.replace(self.folder / f"done-{seed}.json")

    def _plain(self) -> dict[str, Any]:
        listed = [
            {
                "parser": one.parser,
                "what": one.what,
                "content": base64.b64encode(one.content).decode(),
                "trace": one.trace,
            }
            for one in self.findings.values()
        ]
        return {"blocks": self.blocks, "seconds": self.seconds, "findings": listed}


def main() -> int:
    """The command line."""
    options = parser("Mutated messages for every parser of a peer's bytes.")
    options.add_argument("--inputs", type=int, default=INPUTS, help=f"for all parsers together (default {INPUTS})")
    options.add_argument("--processes", type=int, default=2, help="how many feed at once (default 2)")
    options.add_argument("--seed", type=int, default=1, help="of the mutations (default 1)")
    options.add_argument("--folder", type=Path, help="where what was done is kept, to go on from there")
    options.add_argument("--parser", default="", help="only those whose name contains this")
    options.add_argument(
        "--guided", type=int, default=0, metavar="SECONDS", help="of atheris, for each of some parsers"
    )
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """Feed all parsers, in several processes."""
    os.environ.update(quiet_environment())
    inputs = sized(arguments, smallest=1, quick=QUICK_INPUTS, whole=arguments.inputs)
    if arguments.smallest:
        arguments.parser, arguments.processes = SMALLEST, 1
    done = Done(arguments.folder)
    done.load(arguments.seed)
    context = multiprocessing.get_context("forkserver")
    with context.Pool(arguments.processes, initializer=_prepare) as pool:
        names = [name for name in pool.apply(_shares) if arguments.parser in name[0]]
        blocks = list(_missing(names, inputs, done, arguments.seed))
        for name, seconds, found in pool.imap_unordered(_feed, blocks):
            done.note(name, seconds, found, arguments.seed)
    guided = [_guided(name, arguments.guided) for name in GUIDED if arguments.guided and arguments.parser in name]
    return report(done, guided)


def report(done: Done, guided: Sequence[tuple[str, int, str]]) -> Report:
    """One row a parser. guided: name, inputs and what was found by atheris."""
    fed = sum(done.blocks.values()) * BLOCK + sum(inputs for _, inputs, _ in guided)
    crashes = len(done.findings) + sum(found != "" for _, _, found in guided)
    findings = Counter(name for name, _ in done.findings)
    rows = tuple(
        (
            name,
            f"{count * BLOCK:,}",
            f"{done.seconds[name] / (count * BLOCK) * 1e6:.0f}",
            str(findings[name]),
        )
        for name, count in sorted(done.blocks.items())
    )
    tables = [Table(title="Mutated inputs", header=("parser", "inputs", "microseconds each", "crashes"), rows=rows)]
    if guided:
        found = tuple((name, f"{inputs:,}", text or "0") for name, inputs, text in guided)
        tables.append(Table(title="Guided by coverage (atheris)", header=("parser", "inputs", "crashes"), rows=found))
    return Report(
        benchmark="fuzz",
        figures=(
            Figure(name="inputs", value=fed, unit="count", aim=1e7, at_least=True),
            Figure(name="crashes", value=crashes, unit="count", aim=0),
        ),
        tables=tuple(tables),
        notes=tuple(f"{one.parser}: {one.what}" for one in done.findings.values()),
    )


# --- in the processes that feed -------------------------------------------------------------------------------------

_here: dict[str, Parser] = {}


def _prepare() -> None:
    """Record the real messages; each process has a federation of its own."""
    folder = Path(tempfile.mkdtemp(prefix="fedcore-fuzz-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None))
    Finalize(None, shutil.rmtree, args=(folder,), exitpriority=1)
    scratch = folder / "scratch"
    scratch.mkdir()
    _here.update({one.name: one for one in parsers(record(folder), scratch)})


def _shares() -> list[tuple[str, float]]:
    return [(one.name, one.share) for one in _here.values()]


def _feed(work: tuple[str, int, int]) -> tuple[str, float, list[Finding]]:
    name, block, seed = work
    began = perf_counter()
    found = run_block(_here[name], seed=seed, block=block, inputs=BLOCK)
    return name, perf_counter() - began, found


def _missing(names: list[tuple[str, float]], inputs: int, done: Done, seed: int) -> Iterator[tuple[str, int, int]]:
    """The blocks that are still to be fed, those of all parsers in turn."""
    whole = sum(share for _, share in names)
    wanted = {name: math.ceil(inputs * share / whole / BLOCK) for name, share in names}
    for block in range(max(wanted.values(), default=0)):
        for name, count in wanted.items():
            if done.blocks[name] <= block < count:
                yield name, block, seed


# --- atheris --------------------------------------------------------------------------------------------------------


def _guided(name: str, seconds: int) -> tuple[str, int, str]:
    """One parser under atheris, in a process of its own, which ends with the first crash: inputs, what was found."""
    if find_spec("atheris") is None:
        return name, 0, "atheris is not installed: pip install 'fedcore[fuzz]'"
    say(f"atheris: {name}")
    command = [sys.executable, str(Path(__file__).with_name("fuzz_guided.py").resolve()), name, str(seconds)]
    with tempfile.TemporaryDirectory(prefix="fedcore-fuzz-") as folder:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    lines = ended.stderr.splitlines()
    runs = [line for line in lines if line.startswith("stat::number_of_executed_units")]
    inputs = int(runs[0].rsplit(" ", 1)[1]) if runs else 0
    return name, inputs, "" if ended.returncode == 0 else "\n".join(lines[-30:])


if __name__ == "__main__":
    sys.exit(main())
