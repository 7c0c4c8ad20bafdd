"""What is proved about the protocol: every file compiles, without axioms, and one that claims too much does not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROOFS = Path(__file__).parents[3] / "proofs"
LEAST_THEOREMS = 14


@pytest.fixture(autouse=True)
def coq() -> None:
    if shutil.which("coqc") is None:
        pytest.skip("needs coqc: apt-get install coq libcoq-mathcomp-algebra")


def _check(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(folder / "check.py"), "--json"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_theorem_stands_on_no_axiom() -> None:
    done = _check(PROOFS)
    assert done.returncode == 0, done.stderr
    theorems = json.loads(done.stdout)["theorems"]
    assert len(theorems) >= LEAST_THEOREMS
    assert not any(theorem["axioms"] for theorem in theorems)


def test_a_threshold_that_the_bound_does_not_give_is_refused(tmp_path: Path) -> None:
    copied = shutil.copytree(PROOFS, tmp_path / "proofs")
    table = copied / "coq" / "graph_table.v"
    lines = table.read_text().splitlines()
    row = next(i for i, line in enumerate(lines) if line.startswith("  Graph "))
    *fields, threshold = lines[row].rstrip(";").split()
    lines[row] = "  " + " ".join([*fields, str(int(threshold) + 1)]) + ";"
    table.write_text("\n".join(lines))
    assert _check(copied).returncode != 0


def test_the_table_of_graphs_is_that_of_the_product() -> None:
    made = subprocess.run([sys.executable, str(PROOFS / "make_graph_table.py"), "--check"], check=False)
    assert made.returncode == 0
