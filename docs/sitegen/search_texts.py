"""The texts of all pages as one script, so that the search shows what it found on a site that is opened from a folder.

A browser lets no such page fetch another one, which is how Sphinx comes by the words around a match.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

FILE: Final = "pages.js"
_ARTICLE: Final = re.compile(r'<article role="main"[^>]*>.*?</article>', re.DOTALL)


def add_scripts(app: Any, page: str, *_: Any) -> None:
    """The page of the search, and no other, loads the texts."""
    if page == "search":
        app.add_js_file(FILE)
        app.add_js_file("search_texts.js")


def write(app: Any, error: Exception | None) -> None:
    """After a build as HTML: `_static/pages.js` with the main part of each page, by its path in the site."""
    if error is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    pages = {path.relative_to(out).as_posix(): path.read_text(encoding="utf-8") for path in sorted(out.rglob("*.html"))}
    texts = {name: match[0] for name, text in pages.items() if (match := _ARTICLE.search(text))}
    script = f"const SEARCH_TEXTS = {json.dumps(texts, separators=(',', ':'))};\n"
    (out / "_static" / FILE).write_text(script, encoding="utf-8")
