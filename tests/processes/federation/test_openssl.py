"""Certificates as another program sees them."""

import shutil
import subprocess
from datetime import UTC, datetime

import pytest

from fedcore.federation import provision

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
def test_openssl_accepts_the_servers_certificate(tmp_path):
    server = provision(tmp_path / "pilot", name="pilot", clients=3, now=NOW).server
    command = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver"]
    command += ["-attime", str(int(NOW.timestamp()) + 60), "-verify_hostname", "localhost"]
    command += ["-CAfile", str(server / "ca.crt"), str(server / "server.crt")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
