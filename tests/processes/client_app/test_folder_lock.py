"""A client's folder is one agent's, whatever process asks for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from client_app.records.ledger import Ledger
from fedcore.errors import ConfigurationError

LOCK = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)"


def test_two_agents_cannot_share_a_folder(tmp_path: Path) -> None:
    def lock_elsewhere() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-S", "-c", LOCK, str(tmp_path)]
        return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=600, check=False)

    with Ledger(tmp_path):
        with pytest.raises(ConfigurationError, match=str(tmp_path)):
            Ledger(tmp_path)
        assert "BlockingIOError" in lock_elsewhere().stderr
    assert lock_elsewhere().returncode == 0
