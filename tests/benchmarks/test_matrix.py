"""The matrix of interpreters: which versions an arm is held to, and where a Python is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.matrix import ARMS, constraints, interpreter

LOCK = "flwr==1.41.0 \\\n    --hash=sha256:0\nnumpy==2.4.6 \\\n    --hash=sha256:1\npytest==9.2.0\n"


def test_a_locked_arm_is_held_to_the_lock_and_a_new_one_only_in_its_tools() -> None:
    locked, newest = (next(arm for arm in ARMS if arm.locked is wanted) for wanted in (True, False))
    assert constraints(LOCK, locked).splitlines()[2:] == ["numpy==2.4.6", "pytest==9.2.0"]
    assert constraints(LOCK, newest).splitlines()[2:] == ["pytest==9.2.0"]


def test_an_arm_has_the_flower_and_the_torch_of_its_name() -> None:
    """Without a line for torch the resolver had taken another one, with which the lock's setuptools goes."""
    for arm in ARMS:
        own = constraints(LOCK, arm).splitlines()[:2]
        assert own == [f"flwr=={arm.flower}.*", f"torch=={arm.torch}.*"]


def test_every_python_is_tried_with_the_lock_and_with_the_newest() -> None:
    pythons = {arm.python for arm in ARMS}
    assert {(arm.python, arm.locked) for arm in ARMS} == {
        (python, locked) for python in pythons for locked in (True, False)
    }


def test_the_newest_patch_version_of_pyenv_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("3.12.1", "3.12.10", "3.12.9", "3.12.11-dev", "3.13.0"):
        (tmp_path / "versions" / version / "bin").mkdir(parents=True)
        (tmp_path / "versions" / version / "bin" / "python").touch()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert interpreter("3.12") == tmp_path / "versions" / "3.12.10" / "bin" / "python"
    assert interpreter("3.14") is None
