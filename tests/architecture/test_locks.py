"""The locks say what is installed, to the byte, and have all that pyproject.toml asks for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
ENTRY = re.compile(r"(?P<name>\S+)==(?P<version>[^\s;]+)(?P<rest>.*)", re.DOTALL)
LOCKS = ("requirements.lock", "requirements-extras.lock", "requirements-dev.lock")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def locked(*files: str) -> dict[str, str]:
    """Name -> version; every entry has hashes and nothing else."""
    found: dict[str, str] = {}
    for file in files:
        text = "\n".join(line for line in (ROOT / file).read_text().splitlines() if not line.startswith("#"))
        for block in re.split(r"\n(?=\S)", text.strip()):
            entry = ENTRY.fullmatch(block)
            assert entry, block
            assert re.fullmatch(r"( \\\n    --hash=sha256:[0-9a-f]{64})+", entry["rest"]), f"{file}: {entry['name']}"
            assert canonicalize_name(entry["name"]) not in found, f"{entry['name']} is locked twice"
            found[canonicalize_name(entry["name"])] = entry["version"]
    return found


@pytest.mark.parametrize(
    ("files", "extras"),
    [
        (LOCKS[:1], ()),
        (LOCKS[:2], ("huggingface", "postgres", "s3", "tracing")),
        (LOCKS, ("docs", "export", "huggingface", "simulation", "tracking", "dev")),
    ],
)
def test_the_locks_have_what_the_project_asks_for(files: tuple[str, ...], extras: tuple[str, ...]) -> None:
    versions = locked(*files)
    asked = PROJECT["dependencies"] + [text for name in extras for text in PROJECT["optional-dependencies"][name]]
    for requirement in map(Requirement, asked):
        if requirement.name not in ("torch", "fedcore"):
            assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), str(requirement)


def test_no_tool_of_the_developers_is_shipped() -> None:
    assert not {"pytest", "ruff", "mypy", "ray", "hypothesis", "import-linter", "sphinx"} & locked(*LOCKS[:2]).keys()
    for image in ("client", "server"):
        text = (ROOT / "docker" / f"{image}.Dockerfile").read_text()
        assert "requirements-dev.lock" not in text
        assert "--no-deps --require-hashes -r requirements.lock -r requirements-extras.lock" in text
        assert re.search(r"ARG PYTHON_IMAGE=\S+@sha256:[0-9a-f]{64}$", text, re.MULTILINE)
        assert re.search(r"^COPY --chown=root:root examples /apps$", text, re.MULTILINE), "the user cannot write it"
