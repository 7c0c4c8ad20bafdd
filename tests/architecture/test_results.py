"""Results of the kill harness name the code that they are from, and that code is in the history."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("chaos.md"))
_COMMIT = re.compile(r"^- commit: ([0-9a-f]{7,40})$", re.MULTILINE)


def git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_each_measurement_names_a_commit_of_the_history(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    commits = _COMMIT.findall(text)
    assert len(commits) == text.count("- command:"), "of each command, without changes that are in no commit"
    if shutil.which("git") is None or git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("needs git, and a clone with its history")
    for commit in commits:
        assert git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0, commit
