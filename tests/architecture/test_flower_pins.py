"""Which versions Flower forces on fedcore: they stand in one place of pyproject.toml, and are those of this Flower."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
PROJECT = tomllib.loads(TEXT)["project"]


def by_name(lines: list[str]) -> dict[str, Requirement]:
    """Without those of extras."""
    requirements = [Requirement(line) for line in lines]
    return {canonicalize_name(one.name): one for one in requirements if "extra ==" not in str(one.marker)}


FLOWERS = by_name(importlib.metadata.requires("flwr") or [])
OURS = by_name(PROJECT["dependencies"])
BLOCK = by_name(
    re.findall(r'"([^"]+)"', TEXT[TEXT.index("# What Flower holds") : TEXT.index("# The end of what Flower")])
)


def upper(specifier: SpecifierSet) -> Version | None:
    return min((Version(one.version) for one in specifier if one.operator.startswith("<")), default=None)


def test_what_flower_holds_and_fedcore_imports_is_in_one_block() -> None:
    """Flower's other bounds leave room for years; those of releases of 0.x and of web frameworks do not."""
    assert {"fastapi", "starlette", "uvicorn", "typer", "rich"} == BLOCK.keys() <= FLOWERS.keys()


def test_an_upper_bound_of_the_block_is_flowers() -> None:
    for name, ours in BLOCK.items():
        assert upper(ours.specifier) == upper(FLOWERS[name].specifier), f"flwr asks for {FLOWERS[name]}"


def test_no_bound_of_fedcore_excludes_all_that_flower_admits() -> None:
    for name in OURS.keys() & FLOWERS.keys():
        both = OURS[name].specifier & FLOWERS[name].specifier
        assert importlib.metadata.version(name) in both, f"{OURS[name]}, and flwr asks for {FLOWERS[name]}"


def test_an_override_of_the_locks_is_needed() -> None:
    """A line of requirements-overrides.txt goes as soon as no package asks for less any more."""
    lines = (ROOT / "requirements-overrides.txt").read_text(encoding="utf-8").splitlines()
    overrides = by_name([line for line in lines if line and not line.startswith("#")])
    assert overrides.keys() == {"torch", "python-dateutil"}
    assert not overrides.keys() & BLOCK.keys(), "what Flower asks for is installed as it asks"
    asked = [
        requirement
        for distribution in importlib.metadata.distributions()
        for requirement in map(Requirement, distribution.requires or [])
        if canonicalize_name(requirement.name) == "python-dateutil"
    ]
    version = importlib.metadata.version("python-dateutil")
    assert [one for one in asked if version not in one.specifier], (
        "the override of python-dateutil is not needed any more"
    )
