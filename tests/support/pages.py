"""The examples in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def examples(section: str, page: str = "extending.md") -> list[str]:
    """The Python blocks of a section of a page."""
    _, _, rest = (DOCS / page).read_text(encoding="utf-8").partition(f"\n## {section}\n")
    blocks = re.findall(r"```python\n(.*?)```", rest.partition("\n## ")[0], re.DOTALL)
    assert blocks, f"{page} has no example in the section {section!r}"
    return blocks
