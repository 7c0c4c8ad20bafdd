"""Searches the model of recovery in spin/recovery.pml: as it is, and with one fault planted at a time.

    python proofs/recovery.py                  a line for each search of the model, and for each fault what it breaks
    python proofs/recovery.py NAME ..          only these searches and faults
    python proofs/recovery.py --json           the same as one JSON object
    python proofs/recovery.py --trace FAULT    the actions that lead to the broken promise

Without spin or gcc it is skipped with the command that installs them on Debian. Ends with status 1 if the model itself
breaks a promise, or if a fault does not break the one that the table names.
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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

MODEL = Path(__file__).parent / "spin" / "recovery.pml"
INSTALL = "apt-get install spin gcc"
MEGABYTES = 4000
DEEPEST = 100_000


@dataclass(frozen=True)
class Search:
    """One search of every state.

    what: in words. defines: of the model. cycles: it looks for a run that never ends, in place of a broken promise.
    """

    what: str
    defines: Sequence[str]
    cycles: bool = False


@dataclass(frozen=True)
class Fault:
    """A fault, the assertion that it breaks (a part of its text in the model), and what that means."""

    what: str
    broken: str
    promise: str
    defines: Sequence[str]


SEARCHES = {
    "promises": Search("no promise is broken, in any stage, by 2 disturbances", ("DISTURBANCES=2",)),
    "three": Search("nor from the uploads on by 3", ("DISTURBANCES=3", "FIRST=INPUT")),
    "end": Search("and no run goes on for ever", ("DISTURBANCES=2",), cycles=True),
}
"""A run that ends in any other way than its own end is an invalid end state, which the first two would report."""

LOST = "an acknowledged update is lost"
TWICE = "an update is in the sum twice"
_KILL = ("TAKEOVERS=0", "DROPS=0", "CANCELS=0", "DISTURBANCES=1")
FAULTS = {
    "answered-first": Fault("a receipt before the commit", "acknowledged", LOST, _KILL),
    "no-fence": Fault(
        "a lease without fencing", "acknowledged", LOST, ("DAMAGE", "CANCELS=0", "KILLS=0", "DISTURBANCES=2")
    ),
    "two-leaders": Fault(
        "the same, seen at once", "generation", "two leaders write", ("FAULT_NO_FENCE", "DROPS=0", "DISTURBANCES=1")
    ),
    "vectors-not-read": Fault("a takeover that does not read the vectors again", "closing", LOST, _KILL),
    "added-again": Fault("a takeover that adds vectors which the saved sum has", "total[i]<=1", TWICE, _KILL),
    "no-deduplication": Fault("a retry that is not recognized", "total[i]<=1", TWICE, _KILL),
    "removed-first": Fault("vectors removed before the sum is saved", "vectors", LOST, _KILL),
    "disclosed-first": Fault(
        "the survivors named before the commit", "disclosed", "clients hear of two sets", ("TAKEOVERS=0", "CANCELS=0")
    ),
    "end-of-the-abandoned": Fault(
        "the end of an exchange written by the one that abandons it",
        "row<",
        "an exchange ends twice",
        ("TAKEOVERS=0", "DROPS=0", "KILLS=0", "DISTURBANCES=1"),
    ),
}


@dataclass(frozen=True)
class Result:
    """What a search has come to. broken: the assertion, "" if none is; actions: what led there, as the model prints."""

    name: str
    what: str
    broken: str
    actions: list[str]
    states: int
    seconds: float


def defines_of(name: str) -> list[str]:
    """With what the model is compiled for a search."""
    if name in SEARCHES:
        return list(SEARCHES[name].defines)
    own = () if "FAULT_NO_FENCE" in FAULTS[name].defines else (f"FAULT_{name.upper().replace('-', '_')}",)
    return [*own, "ONE_SAVE", *FAULTS[name].defines]


def search(name: str) -> Result:
    """Look for one broken promise; for a fault breadth first, so that the way there is as short as can be."""
    start = time.monotonic()
    cycles = name in SEARCHES and SEARCHES[name].cycles
    defines = [f"-D{define}" for define in defines_of(name)]
    kind = ["-O2", "-DNP", "-DNOFAIR"] if cycles else ["-O2", "-DSAFETY"]
    kind = ["-O1", "-DSAFETY", "-DBFS"] if name in FAULTS else kind
    options = [f"-m{DEEPEST}", *(["-l"] if cycles else []), *(["-E"] if name in FAULTS else [])]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(MODEL, folder)
        _run(["spin", "-a", *defines, MODEL.name], folder)
        _run(["gcc", "-w", *kind, f"-DMEMLIM={MEGABYTES}", "-o", "pan", "pan.c"], folder)
        said = _run(["./pan", *options], folder)
        states = re.search(r"^ *(\d+) states, stored", said, re.MULTILINE)
        if states is None or "max search depth too small" in said or "out of memory" in said:
            sys.exit(f"spin does not finish the search: {said}")
        broken = re.search(r"^pan:1: (.*) \(at depth", said, re.MULTILINE)
        trail = _run(["spin", "-t", *defines, MODEL.name], folder) if broken else ""
    actions = re.findall(r"^ *@ (.*)$", trail, re.MULTILINE)
    what = (SEARCHES[name] if name in SEARCHES else FAULTS[name]).what
    seconds = round(time.monotonic() - start, 1)
    return Result(name, what, broken[1] if broken else "", actions, int(states[1]), seconds)


def _run(command: list[str], folder: str) -> str:
    """What a program prints that runs in `folder`."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode and command[0] != "./pan":
        sys.exit(f"{command[0]} refuses the model: {done.stderr or done.stdout}")
    return done.stdout


def as_expected(result: Result) -> bool:
    """Whether nothing is broken, or by a fault just what the table says."""
    return FAULTS[result.name].broken in result.broken if result.name in FAULTS else not result.broken


def line(result: Result) -> str:
    """A row of the table."""
    what = f"{result.what}: {FAULTS[result.name].promise}" if result.name in FAULTS else result.what
    what = what if as_expected(result) else f"NOT AS EXPECTED: {result.broken or 'nothing is broken'}"
    return f"{result.name:21} {what:88} {result.states:9} {result.seconds:7.1f} s"


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="searches and faults; all by default")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--trace", action="store_true", help="print the actions of each counterexample")
    options = parser.parse_args()
    if unknown := set(options.names) - set(SEARCHES) - set(FAULTS):
        parser.error(f"no such search or fault: {', '.join(sorted(unknown))}")
    if absent := [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]:
        print(json.dumps({"skipped": absent}) if options.json else f"skipped: no {' and no '.join(absent)} ({INSTALL})")
        return
    results = []
    for name in options.names or (*SEARCHES, *FAULTS):
        results.append(result := search(name))
        if not options.json:
            print(line(result), flush=True)
            if options.trace:
                print("".join(f"    {action}\n" for action in result.actions), end="")
    if options.json:
        print(json.dumps([asdict(result) for result in results]))
    if not all(map(as_expected, results)):
        sys.exit("a search does not come out as the table says")


if __name__ == "__main__":
    main()
