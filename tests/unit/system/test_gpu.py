"""A machine with a GPU that torch does not find: it says why, and nothing where no GPU was to be had."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedcore.system.memory import why_no_gpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a GPU")
def test_a_gpu_that_torch_does_not_find_has_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (device := tmp_path / "nvidia0").touch()
    assert why_no_gpu(device)
    assert not why_no_gpu(tmp_path / "nvidia1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not why_no_gpu(device)
