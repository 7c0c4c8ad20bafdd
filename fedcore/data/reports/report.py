"""What all answers about columns have in common: a table with notes, and the files that it is saved to."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from fedcore.data.reports.latex import escaped
from fedcore.system.files import write_file

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


class ColumnsReport(Protocol):
    """An answer as a person or a program reads it."""

    def lines(self) -> list[list[str]]:
        """The table as text, with the headings first."""

    def notes(self) -> list[str]:
        """Sentences below the table."""

    def csv(self) -> str:
        """The table with all digits, and an empty field if there is no number."""

    def document(self) -> dict[str, Any]:
        """All numbers for `json.dumps`, None if there is none."""

    def draw(self, figure: Figure) -> None:
        """The answer as a picture, in a figure that is empty."""


def save_report(report: ColumnsReport, path: Path) -> None:
    """Write a file, by the ending of its name, which is one of `REPORT_ENDINGS`."""
    write_file(path, _FORMS[path.suffix](report) if path.suffix in _FORMS else picture_of(report, path.suffix))


def json_text(report: ColumnsReport) -> str:
    """The document of a report."""
    return json.dumps(report.document(), indent=2) + "\n"


def report_frame(report: ColumnsReport) -> pandas.DataFrame:
    """The table of a report with all digits, indexed by its first column."""
    import pandas

    text = report.csv()
    frame = pandas.read_csv(io.StringIO(text), na_values=[""], keep_default_na=False, dtype={0: str})
    return frame.set_index(frame.columns[0]).rename_axis(next(csv.reader([text.splitlines()[0]]))[0])


def csv_text(lines: Iterable[Iterable[Any]]) -> str:
    """Lines as CSV, with an empty field for NaN."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for line in lines:
        writer.writerow(["" if isinstance(cell, float) and math.isnan(cell) else cell for cell in line])
    return out.getvalue()


def latex_text(lines: list[list[str]]) -> str:
    """Lines, the headings first, as a tabular of the package booktabs."""
    first, *others = [[r"\quad " * cell.startswith("  ") + escaped(cell.strip()) for cell in line] for line in lines]
    body = "\n".join(" & ".join(line) + r" \\" for line in others)
    return "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * (len(first) - 1)}}}", r"\toprule", " & ".join(first) + r" \\", r"\midrule",
            body, r"\bottomrule", r"\end{tabular}", "",
        ]
    )  # fmt: skip


def picture_of(report: ColumnsReport, suffix: str) -> bytes:
    """The picture as a file whose name ends with `suffix`: ".svg", ".png" or ".pdf"."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.5), layout="constrained")
    report.draw(figure)
    out = io.BytesIO()
    # No date, so that the same answer makes the same file.
    figure.savefig(out, format=suffix.removeprefix("."), dpi=150, metadata=_NO_DATE.get(suffix))
    return out.getvalue()


_NO_DATE: Final[Mapping[str, dict[str, None]]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
_FORMS: Final[Mapping[str, Callable[[ColumnsReport], str]]] = {
    ".csv": lambda report: report.csv(),
    ".tex": lambda report: latex_text(report.lines()),
    ".json": json_text,
}
REPORT_ENDINGS: Final = (*_FORMS, ".svg", ".png", ".pdf")
