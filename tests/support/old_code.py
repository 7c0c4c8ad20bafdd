"""The code of an earlier commit, as programs that run with the packages of this Python."""

from __future__ import annotations

import configparser
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGES = ("fedcore", "server_app", "client_app")


def has_commit(commit: str) -> bool:
    """Whether git is here, and has a commit: a copy of the tree, or a shallow clone, has none."""
    try:
        asked = subprocess.run(
            ["git", "cat-file", "-e", f"{commit}^{{commit}}"], check=False, cwd=ROOT, capture_output=True
        )
    except OSError:
        return False
    return asked.returncode == 0


def check_out(commit: str, folder: Path) -> Path:
    """Put a commit's packages into a folder; returns a Python that imports these, and else what this one imports.

    Its processes start others without the environment, so the packages are in a virtual environment.

    Raises subprocess.CalledProcessError if git has no such commit here.
    """
    venv.create(folder, symlinks=True, with_pip=False)
    code, ours = (Path(sysconfig.get_path("purelib", vars={"base": str(base)})) for base in (folder, sys.prefix))
    packed = subprocess.run(
        ["git", "archive", commit, *PACKAGES, "pyproject.toml"], cwd=ROOT, check=True, capture_output=True
    )
    subprocess.run(["tar", "x", "-C", code], input=packed.stdout, check=True)
    _describe(tomllib.loads((code / "pyproject.toml").read_text(encoding="utf-8"))["project"], code)
    (code / "paths.pth").write_text(f"{ours}\n", encoding="utf-8")
    return folder / "bin/python"


def _describe(project: dict[str, Any], folder: Path) -> None:
    """The metadata of that commit's distribution: else the installed one's version and commands would be used."""
    metadata = folder / f"fedcore-{project['version']}.dist-info"
    metadata.mkdir()
    text = f"Metadata-Version: 2.1\nName: fedcore\nVersion: {project['version']}\n"
    (metadata / "METADATA").write_text(text, encoding="utf-8")
    groups = {"console_scripts": project.get("scripts", {}), **project.get("entry-points", {})}
    points = configparser.ConfigParser(delimiters="=")
    points.optionxform = str  # type: ignore[assignment,method-assign] - names of commands as they are
    points.read_dict(groups)
    with (metadata / "entry_points.txt").open("w", encoding="utf-8") as file:
        points.write(file)
