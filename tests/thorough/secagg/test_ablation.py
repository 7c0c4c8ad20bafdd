"""The attacks of tests/support/ablation_attacks: the check stops each of them, and without it each of them works."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedcore.errors import ProtocolViolation
from tests.support import adversary
from tests.support.ablation_attacks import CASES, Attack, signed_by_a_guest, without
from tests.support.hostile import Broken

ABLATION = Path(__file__).parents[3] / "proofs" / "ablation.py"


def _refusals(attack: Attack) -> set[str]:
    """What stops an attack; a server that got nowhere with it must not have a sum."""
    try:
        script = attack()
    except ProtocolViolation as refusal:
        return {refusal.check}
    adversary.recover([script.game])
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
        adversary.recover([script.game])
    assert caught.value.verdict in ("recovered", "policy-undercut")


def test_a_guest_that_signs_is_refused() -> None:
    script = signed_by_a_guest()
    assert script.refusals == {"signer-not-survivor"}
    assert not any(player.released for player in script.players())


def test_without_the_check_a_guest_makes_two_sets_of_survivors(monkeypatch: pytest.MonkeyPatch) -> None:
    without("check_signers")(monkeypatch)
    released = {player.survivors for player in signed_by_a_guest().players() if player.released}
    assert released == {(1, 2, 3), (1, 3, 4)}


def _ablation(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("maude") is None:
        pytest.skip("needs maude: apt-get install maude")
    command = [sys.executable, str(ABLATION), "--json", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_model_comes_out_as_the_table_says() -> None:
    done = _ablation()
    assert done.returncode == 0, done.stderr
    attacks = {result["check"] for result in json.loads(done.stdout) if result["attack"]}
    assert attacks >= {*CASES, "signer-not-survivor"}
