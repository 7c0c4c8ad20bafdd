"""`fedcore.compare` in real processes, called from a script without a guard."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

from support.raising import raises

import fedcore
from fedcore.errors import AppError, ConfigurationError

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


def test_a_call_has_what_the_command_has(tmp_path: Path):
    result = fedcore.compare(
        DIGITS,
        modes="federated,federated-plain",
        clients=3,
        rounds=1,
        seeds=1,
        energy=15,
        plain_check=False,
        progress=False,
    )
    for run in result.report.runs:
        assert run.processor_seconds, "which the energy is estimated from"
    assert result.report.watts == 15
    assert [check.extra_rounds for check in result.report.sum_checks] == []
    (tmp_path / "own.svg").touch()
    names = {path.name for path in result.export(tmp_path)}
    assert {"tables.tex", "methods.md", "finals.csv", "accuracy-rounds.svg"} <= names
    assert {path.name for path in tmp_path.iterdir()} == names | {"own.svg"}
    assert {path.name for path in result.export(tmp_path / "csv", ["csv"])} == {
        "curves.csv", "finals.csv", "methods.md"
    }  # fmt: skip
    with raises(ConfigurationError, check="no-such-form"):
        result.export(tmp_path, ["word"])


def test_what_the_command_refuses_is_refused():
    with raises(ConfigurationError, check="watts"):
        fedcore.compare(DIGITS, energy=-1, progress=False)
    with raises(ConfigurationError, check="budget-form"):
        fedcore.compare(DIGITS, budget="rounds", progress=False)
    with raises(ConfigurationError, check="one-value"):
        fedcore.compare(DIGITS, tune={"lr": [0.1]}, progress=False)
    with raises(ConfigurationError, check="share"):
        fedcore.compare(DIGITS, tune={"lr": [0.1, 0.2]}, validation=1.5, progress=False)


def test_objects_of_this_process_are_refused_by_name():
    with raises(AppError, check="app-in-memory"):
        fedcore.compare(lambda: 3)


def test_its_signature_is_told():
    assert "modes" in inspect.signature(fedcore.compare).parameters
