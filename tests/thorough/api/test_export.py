"""An exported program answers as the module does, and one that does not is not kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from support.raising import raises

from fedcore.api import trained as exporting
from fedcore.api.trained import Export
from fedcore.errors import AppError, ConfigurationError
from fedcore.state import ModelFacts, ModelState, write_model
from fedcore.training.models import digits_mlp

DIGITS = Path(__file__).parents[3] / "examples" / "digits"


@pytest.fixture
def module() -> torch.nn.Module:
    torch.manual_seed(0)
    return digits_mlp().eval()


@pytest.fixture
def model(module: torch.nn.Module, tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    state = ModelState.from_arrays({name: tensor.numpy() for name, tensor in module.state_dict().items()})
    write_model(state, path, ModelFacts(app="digits", app_sha256="ab" * 32, rounds=3, time="2026-01-02T03:04:05+00:00"))
    return path


def order(model: Path, kind: str, out: Path) -> Export:
    return Export(model=model, app=DIGITS, kind=kind, out=out, force=False, run_config=[])


def test_onnx(module: torch.nn.Module, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "digits.onnx"
    order(model, "onnx", out).run(as_json=False)
    assert {entry.key: entry.value for entry in onnx.load(out).metadata_props}["fedcore.rounds"] == "3"
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    x = torch.rand(5, 64)  # not the size of the example's batch
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        assert np.allclose(found, module(x).numpy(), atol=1e-5)
    with raises(ConfigurationError, check="exists"):
        order(model, "onnx", out).run(as_json=False)


def test_torch(module: torch.nn.Module, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "digits.pt2"
    order(model, "torch", out).run(as_json=True)
    assert json.loads(capsys.readouterr().out)["checked"].startswith("torch")
    extra = {exporting.FACTS_FILE: ""}
    program = torch.export.load(out, extra_files=extra).module()
    assert json.loads(extra[exporting.FACTS_FILE])["fedcore.app"] == "digits"
    x = torch.rand(5, 64)
    with torch.no_grad():
        assert torch.equal(program(x), module(x))


def test_a_program_that_answers_otherwise_is_not_kept(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = torch.export.load

    class Off:
        def __init__(self, file: Any) -> None:
            self.program = load(file).module()

        def module(self) -> Callable[..., torch.Tensor]:
            return lambda *inputs: self.program(*inputs) + 0.1

    monkeypatch.setattr(torch.export, "load", Off)
    with raises(AppError, check="differs"):
        order(model, "torch", tmp_path / "digits.pt2").run(as_json=False)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_another_form_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--to.*'tflite'.*onnx.*torch"):
        order(model, "tflite", tmp_path / "x").run(as_json=False)
