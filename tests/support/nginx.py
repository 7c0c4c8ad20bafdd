"""nginx over the configurations that are shipped."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
CONFIGURATIONS = Path(__file__).parents[2] / "deploy" / "nginx"


@contextlib.contextmanager
def nginx(folder: Path, name: str, **changes: str) -> Iterator[subprocess.Popen[str]]:
    """nginx over a shipped configuration, with its addresses and paths replaced by those of the test."""
    text = (CONFIGURATIONS / name).read_text()
    for before, after in {**changes, "/run/fedcore-nginx.pid": f"{folder}/nginx.pid"}.items():
        assert before in text, before
        text = text.replace(before, after)
    path = folder / name
    path.write_text(text)
    main = "daemon off; user root;" if os.geteuid() == 0 else "daemon off;"
    process = subprocess.Popen(
        [NGINX or "", "-c", str(path), "-p", str(folder), "-g", main], stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=600)
        assert "emerg" not in errors, errors
