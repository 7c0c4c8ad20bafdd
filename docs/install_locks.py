"""Install what locks name into the environment of the Python that runs this: with uv, or with pip where uv cannot.

    .venv/bin/python docs/install_locks.py requirements.lock requirements-dev.lock

uv takes a small part of pip's time (benchmarks/results/first_result.md), and is in requirements.lock itself. It reads
no settings of pip, and so is told those that decide where packages come from. Both check every file against the lock's
hashes, and neither compiles: most modules are never imported, and the Makefile compiles what confined processes import.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_EXACT: Final = ("--quiet", "--no-deps", "--require-hashes")
_PIP: Final = (sys.executable, "-m", "pip")
_SETTINGS: Final = {"index-url": "UV_DEFAULT_INDEX", "cert": "SSL_CERT_FILE"}
"""What pip calls it, and what uv does."""


def main(locks: Sequence[str]) -> None:
    """Raises SystemExit where pip cannot install them either."""
    words = [word for lock in locks for word in ("-r", lock)]
    if _installed_uv() and _succeeds([_uv(), "pip", "install", "--python", sys.executable, *_EXACT, *words], _for_uv()):
        return
    sys.stderr.write("uv cannot install here; pip does, which takes longer\n")
    if not _succeeds([*_PIP, "install", "--no-compile", *_EXACT, *words]):
        raise SystemExit(1)


def _uv() -> str:
    return str(Path(sys.executable).parent / "uv")


def _installed_uv() -> bool:
    """Install uv alone, in the version and with the hashes of the lock."""
    (entry,) = re.findall(r"^uv==[^\n]*(?:\n    [^\n]*)*\n", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as alone:
        alone.write(entry)
        alone.flush()
        return _succeeds([*_PIP, "install", "--no-compile", *_EXACT, "-r", alone.name])


def _for_uv() -> dict[str, str]:
    """The environment, with pip's settings in uv's words where nobody said something else."""
    listed = subprocess.run([*_PIP, "config", "list"], capture_output=True, text=True, check=False).stdout  # noqa: S603
    found = dict(re.findall(r"^(?:global|install|:env:)\.([a-z-]+)='(.*)'$", listed, re.MULTILINE))
    return {**{_SETTINGS[name]: value for name, value in found.items() if name in _SETTINGS}, **os.environ}


def _succeeds(command: Sequence[str], environment: dict[str, str] | None = None) -> bool:
    try:
        return subprocess.run(command, env=environment, check=False).returncode == 0  # noqa: S603 - our own words
    except OSError:
        return False


if __name__ == "__main__":
    main(sys.argv[1:])
