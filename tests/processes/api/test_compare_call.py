"""`fedcore.compare` in real processes, called from a script without a guard."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

from support.raising import raises

import fedcore
from fedcore.errors import AppError

DIGITS = Path(__file__).parents[3] / "examples" / "digits"
SCRIPT = """
import sys, fedcore
result = fedcore.compare(sys.argv[1], modes="allreduce,centralized", clients=2, rounds=1, seeds=1, progress=False)
print(repr(result))
print(sorted(result.history.columns))
print(result.metrics.index.tolist())
print(len(result.model("centralized")), len(result.model("allreduce")))
print([line.get_label() for line in result.plot().lines])
print("<table" in result._repr_html_())
print(sorted(path.name for path in result.save(sys.argv[2]).iterdir()))
"""


def test_a_script_without_a_guard_compares(tmp_path: Path):
    """Workers would import it, and each would begin the comparison all over again."""
    script = tmp_path / "compare_it.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script, DIGITS, tmp_path / "kept"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0].startswith("<fedcore.ComparisonResult: fedcore-digits over 2 sites")
    assert "allreduce, centralized" in said[0]
    assert "'accuracy'" in said[1]
    assert said[2] == "[('allreduce', 42), ('centralized', 42)]"
    assert said[3] == "4 4"
    assert said[4] == "['allreduce', 'centralized']"
    assert said[5] == "True"
    assert "report.html" in said[6]
    assert "metrics.csv" in said[6]


def test_objects_of_this_process_are_refused_by_name():
    with raises(AppError, check="app-in-memory"):
        fedcore.compare(lambda: 3)


def test_its_signature_is_told():
    assert "modes" in inspect.signature(fedcore.compare).parameters
