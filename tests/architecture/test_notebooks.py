"""The notebooks are small, come without outputs, and name no machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.later import Later

nbformat = Later("nbformat")

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


def test_there_is_one_for_each_persona() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["flower_team", "hospital", "researcher"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_committed_as_they_were_written(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
        assert not re.search(r"/(home|Users|work|tmp|root)/", cell.source), "a path of somebody's machine"
    assert set(notebook.metadata) <= {"kernelspec", "language_info"}
    assert path.stat().st_size < 20_000
