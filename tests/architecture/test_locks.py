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
IMAGES = ("huggingface", "oidc", "pkcs11", "postgres", "s3", "tracing")
LOCKS = {
    "requirements.lock": (),
    "requirements-extras.lock": IMAGES,
    "requirements-dev.lock": (*IMAGES, "docs", "export", "simulation", "tracking", "dev"),
}
"""File -> the extras that it has; each has all of those before it."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def locked(file: str) -> dict[str, str]:
    """Name -> version; every entry has hashes and nothing else."""
    versions: dict[str, str] = {}
    text = "\n".join(line for line in (ROOT / file).read_text().splitlines() if not line.startswith("#"))
    for block in re.split(r"\n(?=\S)", text.strip()):
        entry = ENTRY.fullmatch(block)
        assert entry, block
        assert re.fullmatch(r"( \\\n    --hash=sha256:[0-9a-f]{64})+", entry["rest"]), f"{file}: {entry['name']}"
        assert canonicalize_name(entry["name"]) not in versions, f"{entry['name']} is locked twice"
        versions[canonicalize_name(entry["name"])] = entry["version"]
    return versions


@pytest.mark.parametrize(("file", "extras"), LOCKS.items())
def test_the_locks_have_what_the_project_asks_for(file: str, extras: tuple[str, ...]) -> None:
    versions = locked(file)
    asked = PROJECT["dependencies"] + [text for name in extras for text in PROJECT["optional-dependencies"][name]]
    for requirement in map(Requirement, asked):
        if requirement.name not in ("torch", "fedcore"):
            assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), str(requirement)


def test_a_larger_lock_has_all_of_the_smaller_in_the_same_versions() -> None:
    smallest, images, all_of_them = (locked(file).items() for file in LOCKS)
    assert smallest < images < all_of_them
    assert not {"torch", "nvidia-nccl"} & locked("requirements-dev.lock").keys(), "torch's build depends on the machine"


def test_no_tool_of_the_developers_is_shipped() -> None:
    tools = {"cyclonedx-bom", "hypothesis", "import-linter", "mypy", "pytest", "ray", "ruff", "sphinx"}
    assert not tools & locked("requirements-extras.lock").keys()
    text = (ROOT / "docker" / "Dockerfile").read_text()
    assert "requirements-dev.lock" not in text
    assert "ARG LOCK=requirements-extras.lock\n" in text
    assert '--no-deps --require-hashes -r "$LOCK"\n' in text
    assert re.search(r"ARG PYTHON_IMAGE=\S+@sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    assert re.search(r"^COPY --chown=root:root examples /apps$", text, re.MULTILINE), "the user cannot write it"
