"""The parts of the site that are made from the code when it is built, so that they cannot be out of date.

A page says where such a part goes by the line `<!-- made from the code: NAME -->`; the rest of it is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from sitegen import (
    commands,
    diagrams,
    events,
    http_api,
    links,
    metrics,
    modules,
    python_api,
    report,
    search_texts,
    settings,
    storage,
)

PARTS: Final[Mapping[str, Callable[[], str]]] = {
    "commands": lambda: commands.PLACE,
    "settings of a run": settings.of_a_run,
    "settings of an engine": settings.of_an_engine,
    "files of a kit": settings.of_kits,
    "metrics": metrics.render,
    "events": events.render,
    "tables": storage.render,
    "packages": modules.packages,
    "modules": modules.modules,
    "report": report.render,
    "HTTP": http_api.render,
    "Python": lambda: python_api.PLACE,
}
"""What can be made, by its name in a page: Markdown."""

_PLACE: Final = re.compile(r"^<!-- made from the code: (.+?) -->$", re.MULTILINE)


def filled(text: str) -> str:
    """A page's text with all that is made from the code; raises KeyError for a part that nobody makes."""
    return links.as_downloads(diagrams.as_tables(_PLACE.sub(lambda found: PARTS[found[1]](), text)))


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""

    def fill(_: Any, __: str, source: list[str]) -> None:
        source[0] = filled(source[0])

    app.connect("source-read", fill)
    app.connect("html-page-context", search_texts.add_scripts)
    app.connect("build-finished", search_texts.write)
    app.connect("autodoc-process-docstring", python_api.as_rst)
    app.connect("sphinx-click-process-options", commands.tidy)
    return {"parallel_read_safe": True}
