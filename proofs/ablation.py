"""Searches the model of the protocol in maude/ for attacks: with all checks, then with each check of a client off.

    python proofs/ablation.py                  a line for each world, and for each check what its absence allows
    python proofs/ablation.py NAME ..          only these checks and worlds
    python proofs/ablation.py --json           the same as one JSON object
    python proofs/ablation.py --trace CHECK    the state of the attack: what every client was shown

Without maude it is skipped with the command that installs it on Debian. Ends with status 1 if a world with all checks
has an attack, or if a row does not come out as the table says.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

MODEL = Path(__file__).parent / "maude"
FILES = ("secagg", "worlds", "clients", "server", "knowledge")
"""In the order of their imports."""
INSTALL = "apt-get install maude"
WORLDS = ("full", "sets", "two", "twice", "guest", "ring", "wide")
PROMISES = {
    "alone": "a sum of fewer honest clients than their owners allow",
    "both": "both secrets of one client",
    "sets": "two sets of survivors that count",
}
"""What the server must never reach, by the name that it has in the model."""


@dataclass(frozen=True)
class Attack:
    """Without the check the search reaches a state of this world in which `promise` is broken."""

    world: str
    promise: str


@dataclass(frozen=True)
class NoAttack:
    """No attack, and why; the search runs in `world`, or there is none if the model has no such step."""

    reason: str
    world: str = ""


SERVER = "an honest server makes it, to keep its own state; a lying one needs no permission"
TABLE: dict[str, Attack | NoAttack] = {
    "key-substitution": Attack("full", "both"),
    "own-entry-altered": NoAttack("others accept only keys that it signed, so they are on another list", "full"),
    "duplicate-key": NoAttack("who copies a key cannot open what is sealed with it", "full"),
    "low-order-point": NoAttack(
        "a signed key of low order is a corrupt client's, whose secrets the server has", "full"
    ),
    "bad-parameters": Attack("full", "alone"),
    "cohort-below-minimum": Attack("full", "alone"),
    "threshold-below-minimum": Attack("two", "alone"),
    "second-cohort": Attack("twice", "alone"),
    "second-delivery": Attack("sets", "alone"),
    "second-survivor-set": Attack("wide", "alone"),
    "second-unmask": NoAttack(
        "the shares follow from the survivors that were signed, of which there is one set", "sets"
    ),
    "inconsistent-survivors": Attack("wide", "alone"),
    "signer-not-survivor": Attack("guest", "sets"),
    "share-unsealing": Attack("sets", "alone"),
    "uncommitted-share": NoAttack("a wrong share spoils its dealer's secret alone: it is there to name the dealer"),
    "unsigned-dealing": Attack("full", "alone"),
    "shares-for-both": NoAttack(SERVER),
    "wrong-neighbours": Attack("ring", "alone"),
    "holders-below-threshold": Attack("wide", "alone"),
    "wrong-recipients": Attack("sets", "alone"),
    "own-id-missing": NoAttack("without itself in U3 a client's vector keeps its self mask", "sets"),
    "sharers-not-advertised": NoAttack("a quorum of signers, all of U2, has to follow: it counts them again", "full"),
    "survivors-not-sharers": NoAttack("nobody has shares of a survivor that is no sharer, and no mask with it", "sets"),
    "off-roster": Attack("full", "both"),
    "duplicate-id": Attack("full", "both"),
    "late-input": NoAttack(SERVER),
    "dropped-client": NoAttack(SERVER),
    "out-of-order": NoAttack(SERVER),
    "malformed": NoAttack("the model has terms, not bytes"),
}
"""Every check of fedcore/secagg/checks.py."""


@dataclass(frozen=True)
class Result:
    """What a search has come to; `attack` is the state that it reached, "" if none is reachable."""

    check: str
    world: str
    promise: str
    attack: str
    states: int
    seconds: float


def search(check: str, world: str, promises: Sequence[str]) -> Result:
    """Look for one reachable state that breaks one of the promises; the check is off, all are on if it is ""."""
    broken = " or-else ".join(f"{promise}(S:World)" for promise in promises)
    flags = f"'{check}" if check else "empty"
    text = "".join((MODEL / f"{name}.maude").read_text() for name in FILES)
    text += f"search [1] start('{world}, {flags}) =>! S:World such that {broken} .\n"
    start = time.monotonic()
    command = ["maude", "-no-banner", "-no-advise", "-no-wrap"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    seconds = round(time.monotonic() - start, 1)
    states = re.search(r"^states: (\d+)", done.stdout, re.MULTILINE)
    if "Warning" in done.stderr or states is None:
        sys.exit(f"maude refuses the model: {done.stderr or done.stdout}")
    attack = re.search(r"^S:World --> (.*)$", done.stdout, re.MULTILINE)
    return Result(check, world, " ".join(promises), attack[1] if attack else "", int(states[1]), seconds)


def search_world(world: str) -> Result:
    """With all checks."""
    return search("", world, tuple(PROMISES))


def search_without(check: str) -> Result:
    """With all checks but one; nothing is searched if the model has no such step."""
    match TABLE[check]:
        case Attack(world, promise):
            return search(check, world, (promise,))
        case NoAttack(_, world) if world:
            return search(check, world, tuple(PROMISES))
    return Result(check, "", "", "", 0, 0.0)


def as_expected(result: Result) -> bool:
    """Whether an attack is there exactly if the table says so."""
    return bool(result.attack) == isinstance(TABLE.get(result.check), Attack)


def line(result: Result) -> str:
    """A row of the table."""
    row = TABLE.get(result.check)
    what = row.reason if isinstance(row, NoAttack) else PROMISES[result.promise] if row else "no attack"
    what = what if as_expected(result) else f"NOT AS EXPECTED: {result.attack or 'no attack'}"
    return f"{result.check or 'all checks':24} {result.world:6} {what:84} {result.states:8} {result.seconds:7.1f} s"


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="checks and worlds; all by default")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--trace", action="store_true", help="print the state of each attack")
    options = parser.parse_args()
    if unknown := set(options.names) - set(TABLE) - set(WORLDS):
        parser.error(f"no such check or world: {', '.join(sorted(unknown))}")
    if shutil.which("maude") is None:
        print(json.dumps({"skipped": "maude"}) if options.json else f"skipped: maude is not installed ({INSTALL})")
        return
    results = []
    for name in options.names or (*WORLDS, *TABLE):
        result = search_world(name) if name in WORLDS else search_without(name)
        results.append(result)
        if not options.json:
            print(line(result), flush=True)
            if options.trace and result.attack:
                print(f"    {result.attack}")
    if options.json:
        print(json.dumps([asdict(result) for result in results]))
    if not all(map(as_expected, results)):
        sys.exit("a search does not come out as the table says")


if __name__ == "__main__":
    main()
