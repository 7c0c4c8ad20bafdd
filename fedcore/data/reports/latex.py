"""Text for LaTeX."""

from __future__ import annotations

import re
from typing import Final

from fedcore.system.terminal import visible

_SIGNS: Final = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "±": r"$\pm$", "×": r"$\times$", "µ": r"$\mu$", "ε": r"$\varepsilon$",
    "δ": r"$\delta$", "–": "--", "…": r"\dots{}", "\u00a0": "~",
}  # fmt: skip


def escaped(text: str) -> str:
    """Any text in a paragraph of LaTeX: what it has of LaTeX's own signs is printed, and does nothing."""
    one_line = re.sub(r"\s+", " ", visible(text.replace("\u00a0", " ")))
    return "".join(_SIGNS.get(sign, sign) for sign in one_line)
