"""The attacks of tests/support/ablation_attacks: the check stops each of them, and without it each of them works."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedcore.errors import ProtocolViolation
from tests.support import adversary
from tests.support.ablation_attacks import CASES, Attack, signed_by_a_guest
from tests.support.ablation_removals import without
from tests.support.hostile import Broken

PROOFS = Path(__file__).parents[3] / "proofs"
ABLATION = PROOFS / "ablation.py"
MODEL = "".join(path.read_text() for path in sorted((PROOFS / "maude").glob("*.maude")))
ROWS = re.findall(r'^    "([a-z-]+)": Attack\(', ABLATION.read_text(), re.M)
WORLDS = dict.fromkeys(re.findall(r"(?:eq proposals\(|: start\()'(\w+)", MODEL))


def _refusals(attack: Attack) -> set[str]:
    """What stops an attack; a server that got nowhere with it must not have a sum."""
    try:
        script = attack()
    except ProtocolViolation as refusal:
        return {refusal.check}
    adversary.recover(script.games)
    return script.refusals


@pytest.mark.parametrize("check", CASES)
def test_a_check_stops_the_attack(check: str) -> None:
    attack, _ = CASES[check]
    assert _refusals(attack) == {check}


@pytest.mark.parametrize("check", CASES)
def test_without_the_check_the_attack_works(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attack, remove = CASES[check]
    remove(monkeypatch)
    script = attack()
    assert check not in script.refusals
    with pytest.raises(Broken) as caught:
        adversary.recover(script.games)
    assert caught.value.verdict in ("recovered", "policy-undercut")


def test_a_guest_that_signs_is_refused() -> None:
    script = signed_by_a_guest()
    assert script.refusals == {"signer-not-survivor"}
    assert not any(player.released for player in script.players())


def test_without_the_check_a_guest_makes_two_sets_of_survivors(monkeypatch: pytest.MonkeyPatch) -> None:
    without("check_signers")(monkeypatch)
    released = {player.survivors for player in signed_by_a_guest().players() if player.released}
    assert released == {(1, 2, 3), (1, 3, 4)}


@pytest.mark.parametrize("name", [*ROWS, *WORLDS])
def test_the_model_comes_out_as_the_table_says(name: str) -> None:
    if shutil.which("maude") is None:
        pytest.skip("needs maude: apt-get install maude")
    command = [sys.executable, str(ABLATION), "--json", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, *others = json.loads(done.stdout)
    assert bool(first["attack"]) == (name not in WORLDS)
    assert not any(result["attack"] for result in others)


def test_a_model_that_promises_too_much_is_refused(tmp_path: Path) -> None:
    """The server gets the sum of two honest clients, as many as their owners ask for: the search can tell."""
    if shutil.which("maude") is None:
        pytest.skip("needs maude: apt-get install maude")
    copied = shutil.copytree(PROOFS, tmp_path / "proofs")
    knowledge = copied / "maude" / "knowledge.maude"
    knowledge.write_text(knowledge.read_text().replace("| S | < min-cohort(W)", "| S | <= min-cohort(W)"))
    command = [sys.executable, str(copied / "ablation.py"), "twice"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "NOT AS EXPECTED: over(" in done.stdout
