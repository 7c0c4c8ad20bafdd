"""The notebooks run, each from a fresh kernel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.later import Later

nbclient, nbformat = Later("nbclient"), Later("nbformat")

NOTEBOOKS = sorted((Path(__file__).parents[3] / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "FLWR_TELEMETRY_ENABLED", "0")
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(path.parent)}}
    nbclient.NotebookClient(notebook, timeout=1500, kernel_name="python3", resources=where).execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in shown), "a plot is shown"
    assert any("<table" in output.get("data", {}).get("text/html", "") for output in shown), "a result shows itself"
