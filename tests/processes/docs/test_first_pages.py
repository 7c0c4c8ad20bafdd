"""What a stranger is told to type first works, as it stands there."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.doc_pages import FIRST, do_pages

# A page with a federation starts a server and its clients, each of which imports torch.


@pytest.mark.parametrize("page", FIRST)
def test_a_page(page: str, tmp_path: Path) -> None:
    do_pages([page], tmp_path)
