"""All bytes of a run, as it says itself, against what an outsider counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ALONE = ("unshare", "--user", "--map-root-user", "--net")
WITHIN = 0.05


def test_all_bytes_of_a_run_are_those_of_the_loopback(tmp_path: Path) -> None:
    """But for the app, which is sent before the run begins, and for the model, which is fetched after it has ended."""
    if subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine gives no network namespaces")
    command = [*ALONE, sys.executable, "-m", "tests.support.counted_run", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    run = json.loads(done.stdout.splitlines()[-1])
    traffic = run["all_bytes"]
    counted = sum(traffic["bytes_up"].values()) + sum(traffic["bytes_down"].values())
    counted += traffic["operators_up"] + traffic["operators_down"]
    fetched = (tmp_path / "model.safetensors").stat().st_size
    assert run["status"] == "finished"
    assert counted == pytest.approx(run["carried"] - fetched, rel=WITHIN)
    exchanges = len(traffic["bytes_up"]) * (run["bytes_up_per_client"] + run["bytes_down_per_client"])
    assert counted > exchanges
