"""The import rules of pyproject.toml hold, and the protocol stays free of I/O at run time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINT_IMPORTS = (
    sys.executable,
    "-c",
    "from importlinter.cli import lint_imports_command; lint_imports_command()",
)

# What a package without I/O must not load, not even through another. `socket` and `time` are left
# out: NumPy loads the first, the interpreter itself the second.
FORBIDDEN = ("asyncio", "fastapi", "flwr", "http", "httpx", "requests", "ssl", "torch", "uvicorn")


def _run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=90, check=False)


def test_import_contracts_hold():
    result = _run(*LINT_IMPORTS, "--no-cache")
    assert result.returncode == 0, result.stdout + result.stderr


def test_secagg_loads_nothing_that_talks():
    script = f"import sys, fedcore.secagg;print(*[name for name in {FORBIDDEN!r} if name in sys.modules])"
    result = _run(sys.executable, "-c", script)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


@pytest.mark.parametrize("module", ["fedcore.flower.clientside", "client_app.startup", "client_app.ranks.rank"])
def test_an_app_without_torch_runs_without_it(module: str):
    """Its import takes seconds and 200 MB, in every rank of every client."""
    result = _run(sys.executable, "-c", f"import sys, {module};print('torch' in sys.modules)")
    assert result.stdout.split() == ["False"], result.stderr


@pytest.mark.parametrize(
    ("statement", "kept"),
    [
        ("import hashlib", True),
        ("from pure.inner import other", True),
        ("import json.decoder", False),
        ("from helper import thing", False),
    ],
)
def test_allow_list_contract(tmp_path: Path, statement: str, kept: bool):
    package = tmp_path / "pure"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "inner" / "__init__.py").touch()
    (package / "inner" / "other.py").touch()
    (package / "inner" / "module.py").write_text(f"{statement}\n")
    helper = tmp_path / "helper"
    helper.mkdir()
    (helper / "__init__.py").write_text("thing = 1\n")
    contracts = tmp_path / "import_contracts.py"
    contracts.write_bytes((ROOT / "tests/architecture/import_contracts.py").read_bytes())
    config = tmp_path / "pyproject.toml"
    config.write_text(
        """
[tool.importlinter]
root_packages = ["pure", "helper"]
include_external_packages = true
contract_types = ["allowed_imports: import_contracts.AllowedImports"]

[[tool.importlinter.contracts]]
name = "pure"
type = "allowed_imports"
source_modules = ["pure"]
allowed_modules = ["hashlib"]
"""
    )
    result = _run(*LINT_IMPORTS, "--no-cache", cwd=tmp_path)
    assert (result.returncode == 0) is kept, result.stdout + result.stderr
    if not kept:
        assert "pure.inner.module imports" in result.stdout
