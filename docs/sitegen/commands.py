"""The reference of commands, by sphinx-click."""

from __future__ import annotations

import re
from typing import Any, Final

import typer

from fedcore.cli.main import app

command: Final = typer.main.get_command(app)
PLACE: Final = "```{eval-rst}\n.. click:: sitegen.commands:command\n   :prog: fedcore\n   :nested: full\n```\n"
_NONE: Final = re.compile(r":default: ``(False|'')``")
_TEXT: Final = re.compile(r"(?:PosixPath\()?'(.*)'\)?(?=``$)")


def tidy(_: Any, __: Any, lines: list[str]) -> None:
    """Defaults of options as a person types them, and none if that is no text or no."""
    shown = (_TEXT.sub(r"\1", line) if ":default:" in line else line for line in lines if not _NONE.search(line))
    lines[:] = [line.replace("\\[", "[") if line.startswith(".. option") else line for line in shown]
