"""Renew the locks from pyproject.toml, with the hashes of all published files.

    make lock                      # the versions stay, packages come and go with pyproject.toml
    make lock UPGRADE=--upgrade    # the newest versions that pyproject.toml allows

requirements.lock has what fedcore itself needs, requirements-extras.lock what the images install beside it, and
requirements-dev.lock what tests and checks need beside both. torch is in none: its build depends on the machine, and
brings its own dependencies.
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
LOCKS: Final = {
    "requirements.lock": ("What fedcore needs beside torch", ()),
    "requirements-extras.lock": (
        "What the images have beside requirements.lock",
        ("huggingface", "postgres", "s3", "tracing"),
    ),
    "requirements-dev.lock": ("What tests and checks need beside the other locks", ("dev",)),
}
"""What is in each file, and the extras that it adds to those before it."""
_BUILD: Final = "setuptools>=77\n"
"""What builds fedcore itself; pyproject.toml says the same in its table of the build."""
_ANY: Final = "python-dateutil>=2.1\n"
"""botocore, which the tests' S3 server is made of, has not tried the next major version yet; nothing else minds."""
_HEADER: Final = """\
# {what} (Linux, CPython 3.11). Made by docs/make_locks.py; to renew: make lock.
# Each line has the hashes of all files that were published of that version, for every platform.
"""
_NAME = re.compile(r"^([A-Za-z0-9._-]+)==", re.MULTILINE)


def main() -> None:
    """Make all files; each keeps to the versions of those before it, and has none of their packages."""
    before: list[Path] = []
    for name, (what, extras) in LOCKS.items():
        lock = ROOT / name
        kept = [word for path in before for word in ("-c", str(path))]
        _compile(lock, what, [*(word for extra in extras for word in ("--extra", extra)), *kept, *sys.argv[1:]])
        installed = {found for path in before for found in _NAME.findall(path.read_text())}
        header, *blocks = re.split(r"^(?=[A-Za-z0-9])", lock.read_text(), flags=re.MULTILINE)
        lock.write_text(header + "".join(block for block in blocks if block.partition("==")[0] not in installed))
        before.append(lock)


def _compile(lock: Path, what: str, options: Sequence[str]) -> None:
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
    with tempfile.TemporaryDirectory() as name:
        without, build = Path(name) / "override.txt", Path(name) / "build.txt"
        without.write_text('torch ; sys_platform == "never"\n' + _ANY)
        build.write_text(_BUILD)
        words = ["pip", "compile", "pyproject.toml", str(build), "--override", str(without), *options]
        words += ["--generate-hashes", "--python-version", "3.11", "--no-header", "--no-annotate", "--quiet"]
        subprocess.run([uv, *words, "-o", str(lock)], cwd=ROOT, check=True)  # noqa: S603 - our own words
    lock.write_text(_HEADER.format(what=what) + lock.read_text())


if __name__ == "__main__":
    main()
