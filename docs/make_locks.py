"""Renew requirements.lock and requirements-dev.lock from pyproject.toml, with the hashes of all published files.

    make lock                      # the versions stay, packages come and go with pyproject.toml
    make lock UPGRADE=--upgrade    # the newest versions that pyproject.toml allows

requirements.lock has what the images install, requirements-dev.lock what tests and checks need beside it. torch is in
neither: its build depends on the machine, and brings its own dependencies.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
LOCK, DEV_LOCK = ROOT / "requirements.lock", ROOT / "requirements-dev.lock"
_BUILD: Final = "setuptools>=77\n"
"""What builds fedcore itself; pyproject.toml says the same in its table of the build."""
_HEADER: Final = """\
# {what} (Linux, CPython 3.11). Made by docs/make_locks.py; to renew: make lock.
# Each line has the hashes of all files that were published of that version, for every platform.
"""
_NAME = re.compile(r"^([A-Za-z0-9._-]+)==", re.MULTILINE)


def main() -> None:
    """Make both files."""
    options = sys.argv[1:]
    _compile(LOCK, "What fedcore needs beside torch", ["--extra", "huggingface", *options])
    _compile(DEV_LOCK, "What tests and checks need beside requirements.lock", ["--extra", "dev", "-c", str(LOCK)])
    installed = set(_NAME.findall(LOCK.read_text()))
    header, *blocks = re.split(r"^(?=[A-Za-z0-9])", DEV_LOCK.read_text(), flags=re.MULTILINE)
    DEV_LOCK.write_text(header + "".join(block for block in blocks if block.partition("==")[0] not in installed))


def _compile(lock: Path, what: str, options: Sequence[str]) -> None:
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
    with tempfile.TemporaryDirectory() as name:
        without, build = Path(name) / "override.txt", Path(name) / "build.txt"
        without.write_text('torch ; sys_platform == "never"\n')
        build.write_text(_BUILD)
        words = ["pip", "compile", "pyproject.toml", str(build), "--override", str(without), *options]
        words += ["--generate-hashes", "--python-version", "3.11", "--no-header", "--no-annotate", "--quiet"]
        subprocess.run([uv, *words, "-o", str(lock)], cwd=ROOT, check=True)  # noqa: S603 - our own words
    lock.write_text(_HEADER.format(what=what) + lock.read_text())


if __name__ == "__main__":
    main()
