"""The files for a paper: tables and a paragraph for LaTeX, long-form CSV, figures as SVG."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from fedcore.comparison.report.document import Comparison
from fedcore.comparison.report.files import drawings_of
from fedcore.comparison.report.forms.latex import tables_tex
from fedcore.comparison.report.forms.long_form import curves_csv, finals_csv
from fedcore.comparison.report.forms.methods import methods_md, methods_tex
from fedcore.errors import ConfigurationError
from fedcore.system.files import write_file

EXPORT_FOLDER: Final = "export"
"""In the folder of a report."""


def _latex(comparison: Comparison, folder: Path) -> list[Path]:
    return [
        _written(folder / "tables.tex", tables_tex(comparison)),
        _written(folder / "methods.tex", methods_tex(comparison)),
    ]


def _csv(comparison: Comparison, folder: Path) -> list[Path]:
    return [
        _written(folder / "curves.csv", curves_csv(comparison)),
        _written(folder / "finals.csv", finals_csv(comparison)),
    ]


def _svg(comparison: Comparison, folder: Path) -> list[Path]:
    paths = []
    for drawing in drawings_of(comparison):
        paths.append(folder / f"{drawing.name}.svg")
        drawing.file(paths[-1])
    return paths


_FORMS: Final[Mapping[str, Callable[[Comparison, Path], list[Path]]]] = {"latex": _latex, "csv": _csv, "svg": _svg}


def parse_export(text: str) -> tuple[str, ...]:
    """Read what stands after `--export`, `latex,csv,svg` say; raises ConfigurationError."""
    forms = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if unknown := [form for form in forms if form not in _FORMS]:
        raise ConfigurationError(
            f"--export: there is no form {unknown[0]!r}; there are {', '.join(_FORMS)}", check="no-such-form"
        )
    return forms


def export(comparison: Comparison, forms: Sequence[str], folder: Path) -> list[Path]:
    """Write these forms, and the paragraph on methods, into a folder, where other files stay; returns the files.

    Args:
        forms: by `parse_export`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = [path for form in forms for path in _FORMS[form](comparison, folder)]
    return [*files, _written(folder / "methods.md", methods_md(comparison))]


def _written(path: Path, text: str) -> Path:
    write_file(path, text)
    return path
