"""Searches the model of the protocol in maude/ for attacks: with all checks, then with each check off.

    python proofs/ablation.py                  a line for each world, and for each check what its absence allows
    python proofs/ablation.py NAME ..          only these checks and worlds
    python proofs/ablation.py --json           the same as one JSON object
    python proofs/ablation.py --trace CHECK    the state of the attack: what every client was shown

Without maude it is skipped with the command that installs it on Debian. Ends with status 1 if a search does not
come out as the tables here say.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

MODEL = Path(__file__).parent / "maude"
INSTALL = "apt-get install maude"
PROMISES = {
    "alone": "a sum of fewer honest clients than their owners allow",
    "both": "both secrets of one client",
    "sets": "two sets of survivors that count",
    "left-out": "a client helps to open a sum without its own vector",
    "few": "a client deals its secrets among fewer clients than the quorum",
    "convicted": "an honest client is convicted",
    "spoiled": "a sum of other vectors than the survivors'",
    "stuck": "honest clients leave an honest server, and nobody is blamed",
    "hoarded": "an honest server has shares of both secrets of one client",
    "misplaced": "a sum of clients whom no draw put into one group",
    "small": "a sum of fewer than a group's least members",
}
"""What must never be reached, by the name that it has in the model."""


@dataclass(frozen=True)
class Model:
    """Files of maude/, in the order of their imports, and the promises that are looked at in its worlds."""

    files: tuple[str, ...]
    promises: tuple[str, ...]


EXCHANGE = Model(
    ("secagg", "worlds", "clients", "server", "knowledge"), ("alone", "both", "sets", "left-out", "few", "convicted")
)
"""A server that lies."""
FAULTS = Model(("secagg", "faults"), ("spoiled", "stuck", "convicted", "hoarded"))
"""An honest server, and a client that cheats."""
SUMS = Model(("secagg", "sums"), ("alone",))
"""Sums of one model, and buffered ones."""
GROUPS = Model(("secagg", "groups"), ("alone", "misplaced", "small"))
"""Draws, and the sums of their groups."""
WORLDS = dict.fromkeys(
    ("full", "sets", "two", "twice", "guest", "ring", "wide", "copied", "related", "seized", "restarted", "repaired"),
    EXCHANGE,
) | {"faults": FAULTS, "sums": SUMS, "groups": GROUPS}


@dataclass(frozen=True)
class Attack:
    """Without the check the search reaches a state of this world in which `promise` is broken.

    `behind` is a check that stops the same attack: it is taken away too, and with one of the two there is no attack.
    """

    world: str
    promise: str
    behind: str = ""


CHECKS = {
    "key-substitution": Attack("full", "both"),
    "own-entry-altered": Attack("restarted", "convicted"),
    "duplicate-key": Attack("copied", "alone", behind="possession"),
    "low-order-point": Attack("faults", "stuck"),
    "bad-parameters": Attack("full", "alone"),
    "cohort-below-minimum": Attack("full", "alone"),
    "threshold-below-minimum": Attack("two", "alone"),
    "second-cohort": Attack("twice", "alone"),
    "second-delivery": Attack("sets", "alone"),
    "second-survivor-set": Attack("wide", "alone"),
    "second-unmask": Attack("seized", "alone"),
    "inconsistent-survivors": Attack("wide", "alone"),
    "signer-not-survivor": Attack("guest", "sets"),
    "share-unsealing": Attack("sets", "alone"),
    "uncommitted-share": Attack("faults", "convicted"),
    "unsigned-dealing": Attack("full", "alone"),
    "shares-for-both": Attack("faults", "hoarded", behind="wrong-recipients"),
    "wrong-neighbours": Attack("ring", "alone"),
    "holders-below-threshold": Attack("wide", "alone"),
    "wrong-recipients": Attack("sets", "alone"),
    "own-id-missing": Attack("sets", "left-out"),
    "sharers-not-advertised": Attack("guest", "sets"),
    "survivors-not-sharers": Attack("guest", "sets"),
    "off-roster": Attack("full", "both"),
    "duplicate-id": Attack("full", "few"),
    "late-input": Attack("faults", "spoiled"),
    "dropped-client": Attack("faults", "stuck"),
    "out-of-order": Attack("faults", "stuck"),
    "malformed": Attack("faults", "stuck"),
    "exchange-in-ctx": Attack("repaired", "both"),
    "possession": Attack("related", "alone"),
}
"""Every check of fedcore/secagg/checks.py, and two that have no name of their own there.

Without `exchange-in-ctx` ctx lacks the exchange's number. `possession` is a part of unsigned-dealing: who complains
asks whether the accused has proved that it has its keys.
"""
ADMISSION = {
    "differencing": Attack("sums", "alone"),
    "other-question": Attack("sums", "alone"),
    "update-reused": Attack("sums", "alone"),
    "too-many-draws": Attack("groups", "misplaced"),
}
"""Checks of fedcore/federation/admission/checks.py: one question about a model, one sum of an update."""
WRONG_GROUP = {
    "no-draw": Attack("groups", "misplaced"),
    "too-few-answers": Attack("groups", "misplaced"),
    "unsigned": Attack("groups", "misplaced"),
    "stranger": Attack("groups", "misplaced"),
    "too-small": Attack("groups", "small"),
}
"""Reasons of `wrong-group`, each a check of its own (fedcore/run/groups.py)."""
TABLE = CHECKS | ADMISSION | WRONG_GROUP

ADMISSION_APART = {
    "what is run, how large it is and how long it takes": "app-mismatch config-not-allowed message-not-allowed "
    "model-too-large too-many-tensors too-long too-short model-malformed model-missing message-missing model-digest "
    "layout-mismatch",
    "what an owner allows in all, or insists on": "too-many-exchanges too-many-releases not-planned plain-not-allowed "
    "buffered-not-allowed privacy-required noise-shares too-little-noise privacy-budget agreement-not-allowed",
    "what one sum of enough clients tells, which is safe here": "tree-too-deep node-too-small weight-key first-model "
    "encoding-refused encoding-off-settings scales-off-rule",
    "names of models, which are terms here": "model-not-canonical other-layout version-fork start-mismatch "
    "buffer-off-settings",
    "the roster and the parameters, which R0 checks too": "roster-rollback roster-gap off-roster own-id-missing "
    "duplicate-id cohort-below-minimum threshold-below-minimum corrupt-below-minimum bad-parameters",
    "a client enters an exchange once, but for the world restarted": "exchange-reused",
    "its reasons are in a table of their own": "wrong-group",
}
"""Why the model lacks the other checks of admission."""
WRONG_GROUP_APART = {
    "not-answered": "an earlier draw was answered too, and counts among those that a client answers",
    "other-draw": "there is one model, and one cut",
    "answers": "a ring has everybody once",
    "answers-hash": "ctx binds the hash, so who sees other answers is in another exchange",
    "own-answer": "who is in its part is among the answers, and signs one to a draw",
    "numbers": "a part is known by its members",
}
"""Why the model lacks the other reasons of `wrong-group`."""


@dataclass(frozen=True)
class Result:
    """What a search without the checks `off` has come to; `attack` is the state that it reached, "" if none."""

    off: tuple[str, ...]
    world: str
    promises: tuple[str, ...]
    attack: str
    states: int
    seconds: float
    """Of one core."""
    expected: bool
    """Whether there is an attack exactly if the table says so."""


def search(off: Sequence[str], world: str, promises: Sequence[str], *, attacked: bool) -> Result:
    """Look for one reachable state that breaks one of the promises, with these checks off.

    Args:
        attacked: Whether there should be one.
    """
    broken = " or-else ".join(f"{promise}(S:World)" for promise in promises)
    flags = ", ".join(f"'{check}" for check in off) or "empty"
    text = "".join((MODEL / f"{name}.maude").read_text() for name in WORLDS[world].files)
    text += f"search [1] start('{world}, ({flags})) =>* S:World such that {broken} .\n"
    command = ["maude", "-no-banner", "-no-advise", "-no-wrap"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    counts = re.search(r"^states: (\d+) .* in (\d+)ms cpu", done.stdout, re.MULTILINE)
    if "Warning" in done.stderr or counts is None:
        sys.exit(f"maude refuses the model: {done.stderr or done.stdout}")
    found = re.search(r"^S:World --> (.*)$", done.stdout, re.MULTILINE)
    attack = found[1] if found else ""
    return Result(
        tuple(off), world, tuple(promises), attack, int(counts[1]), int(counts[2]) / 1000, bool(attack) == attacked
    )


def search_world(world: str) -> list[Result]:
    """With all checks."""
    return [search((), world, WORLDS[world].promises, attacked=False)]


def search_without(check: str) -> list[Result]:
    """With all checks but one; if another one stands behind it with both off, and with either."""
    row = TABLE[check]
    if not row.behind:
        return [search((check,), row.world, (row.promise,), attacked=True)]
    switched = {(check, row.behind): True, (check,): False, (row.behind,): False}
    return [search(off, row.world, (row.promise,), attacked=attacked) for off, attacked in switched.items()]


def line(result: Result) -> str:
    """A row of the table."""
    found = PROMISES[result.promises[0]] if result.attack else "no attack"
    what = found if result.expected else f"NOT AS EXPECTED: {result.attack or found}"
    name = " + ".join(result.off) or "all checks"
    return f"{name:34} {result.world:9} {what:90} {result.states:8} {result.seconds:7.1f} s"


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
        for result in search_world(name) if name in WORLDS else search_without(name):
            results.append(result)
            if not options.json:
                print(line(result), flush=True)
                if options.trace and result.attack:
                    print(f"    {result.attack}")
    if options.json:
        print(json.dumps([asdict(result) for result in results]))
    if not all(result.expected for result in results):
        sys.exit("a search does not come out as the table says")


if __name__ == "__main__":
    main()
