"""All answers of a study in one HTML page, which needs nothing else: no script and no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader

from fedcore.system.terminal import visible


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySection:
    """A section of the page.

    lines: its table, with the headings first. notes: sentences below it. picture: SVG, "" for none.
    """

    title: str
    text: str
    lines: Sequence[Sequence[str]]
    notes: Sequence[str]
    picture: str = ""


def study_page(title: str, sections: Sequence[StudySection]) -> str:
    """The page as text."""
    environment = Environment(
        loader=PackageLoader("fedcore.data.reports", "templates"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["visible"] = visible
    return environment.get_template("study.html.j2").render(title=title, sections=sections)
