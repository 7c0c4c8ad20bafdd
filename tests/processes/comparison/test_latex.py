"""The tables and the paragraph for a paper, where there is a LaTeX that takes them."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from support.comparisons import everything

from fedcore.comparison.report import export

HOSTILE = r"app_1 & 50 % #1 $x^2$ {\input{/etc/passwd}} ~ <b> ] \" | ε ± –"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX on this machine")
def test_latex_takes_what_is_exported(tmp_path: Path) -> None:
    whole = everything()
    export(replace(whole, app=HOSTILE, partition=HOSTILE), ["latex"], tmp_path)
    preamble = r"\documentclass{article}\usepackage[T1]{fontenc}\usepackage{booktabs,graphicx}\begin{document}"
    (tmp_path / "paper.tex").write_text(preamble + r"\input{methods}\input{tables}\end{document}")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stdout[-2000:]
    assert r"Overfull \hbox" not in result.stdout, "every table fits its page"
