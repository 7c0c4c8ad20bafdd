"""The modules of the product, for tests of how it is built."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("fedcore", "server_app", "client_app")
TEMPLATES: Final = ("fedcore/cli/new/files/", "fedcore/cli/demo/digits/")
"""Apps that `fedcore new` and `fedcore demo` copy: separate programs."""


def modules() -> Iterator[Path]:
    """The product's modules, from the repository's root."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            module = path.relative_to(ROOT)
            if not str(module).startswith(TEMPLATES):
                yield module
