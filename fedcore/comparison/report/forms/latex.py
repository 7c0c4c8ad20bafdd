"""The tables of a report for LaTeX, with the rules of booktabs; every text is escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from fedcore.comparison.report.document import Comparison
from fedcore.comparison.report.tables import TextTable, caption, meanings, part_tables, pooling, word_columns
from fedcore.data.reports.latex import escaped

_HEAD: Final = "% The preamble needs: \\usepackage{booktabs,graphicx}, and with pdflatex \\usepackage[T1]{fontenc}.\n"
# A table wider than a line is made as wide as one; inside the box \width is its own width.
_SHRUNK: Final = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
_TITLES: Final = {"models": "What the models reach", "costs": "What they cost"}


def tables_tex(comparison: Comparison) -> str:
    """The tables of models and of costs, each in a table environment with a caption and a label."""
    return _HEAD + "".join(_table(comparison, name, part) for name, part in part_tables(comparison).items())


def _table(comparison: Comparison, name: str, part: TextTable) -> str:
    head, rows = part
    what = f"{_TITLES[name]}: {comparison.app}, {comparison.divided}."
    explained = [caption(comparison) if name == "models" else pooling(comparison)]
    explained += [f"{title[0].upper()}{title[1:]}: {meaning}." for title, meaning in meanings(comparison, name)]
    aligned = "".join("l" if words else "r" for words in word_columns(part))
    lines = [
        r"\begin{table}",
        r"\centering\small",
        rf"\caption{{{escaped(' '.join(filter(None, [what, *explained])))}}}",
        rf"\label{{tab:{_label(comparison.app)}-{name}}}",
        _SHRUNK,
        rf"\begin{{tabular}}{{{aligned}}}",
        r"\toprule",
        _row(head),
        r"\midrule",
        *map(_row, rows),
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]
    return "\n" + "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    # A bracket at the beginning of a row would be an option of the line end before it.
    return " & ".join(f"{{{escaped(cell)}}}" if cell.startswith("[") else escaped(cell) for cell in cells) + r" \\"


def _label(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-") or "app"
