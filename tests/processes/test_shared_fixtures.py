"""What a file's tests share is made once, however many workers run the tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARING = "tests/unit/data/test_files.py"
"""A quick file with tests that share a fixture."""


def test_one_worker_runs_a_file_whose_tests_share_a_fixture() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-vv",
        "-n",
        "2",
        "--dist",
        "loadgroup",
        SHARING,
        "-k",
        "download or fetched",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    ran = re.findall(rf"\[(gw\d)\].* PASSED {SHARING}", done.stdout)
    assert len(ran) > 1, done.stdout
    assert len(set(ran)) == 1, done.stdout
