"""A machine with a GPU that torch does not find: it says why, and nothing where no GPU was to be had."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from fedcore.codec.gpu import device as codec_device
from fedcore.system.memory import may_have_gpu, why_no_gpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a GPU")
def test_a_gpu_that_torch_does_not_find_has_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (device := tmp_path / "nvidia0").touch()
    assert why_no_gpu(device)
    assert not why_no_gpu(tmp_path / "nvidia1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not why_no_gpu(device)


@pytest.mark.parametrize("name", ["nvidiactl", "dxg", "kfd"])
def test_a_gpu_has_a_device_file(tmp_path: Path, name: str) -> None:
    assert may_have_gpu(tmp_path) == (sys.platform != "linux")
    (tmp_path / name).touch()
    assert may_have_gpu(tmp_path)


def test_no_agent_imports_torch_to_look_for_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have 140 MiB less from its first large upload on."""
    monkeypatch.setattr(codec_device, "device_serves_from", lambda: 1)
    monkeypatch.setattr(codec_device, "may_have_gpu", lambda: False)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert codec_device.open_vector(codec_device.LEAST_WORDS) is None
