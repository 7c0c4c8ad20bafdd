"""What the documentation tells its reader to type works, page by page, as it stands there."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.doc_pages import do_pages, others

# A page with a federation starts a server and its clients, each of which imports torch.


@pytest.mark.parametrize("page", others())
def test_a_page(page: str, tmp_path: Path) -> None:
    do_pages([page], tmp_path)
