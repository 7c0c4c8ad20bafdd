"""What the pages on running a federation tell their reader to type works, one page after the other."""

from __future__ import annotations

from pathlib import Path

from support.doc_pages import OPERATING, do_pages

# A server and its clients, each of which imports torch.


def test_the_pages(tmp_path: Path) -> None:
    do_pages(OPERATING, tmp_path)
