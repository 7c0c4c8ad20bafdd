"""The files that pages of the documentation show."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def shown_files(page: str) -> list[str]:
    """What a page includes of examples/extensions."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^```\{literalinclude\} \.\./examples/extensions/(\S+)$", text, re.MULTILINE)
