"""Links to files that are no pages of the site: they are copied into it, for download."""

from __future__ import annotations

import re
from typing import Final

_LEAVING: Final = re.compile(
    r"(?<!!)\[([^\]]*)\]\(((?:\.\./)+(?:benchmarks|examples|deploy|docker|proofs|tests)/[^)#]*\.\w+)(?:#[^)]*)?\)"
)


def as_downloads(text: str) -> str:
    """The page with every link to a file outside of docs as a download."""
    return _LEAVING.sub(lambda found: f"{{download}}`{' '.join(found[1].split())} <{found[2]}>`", text)
