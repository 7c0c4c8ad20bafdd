"""Numbers as people read them."""

import pytest

from fedcore.monitoring.formatting import size


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0 B"), (17, "17 B"), (999, "999 B"), (1500, "1.5 kB"), (999_960, "1.0 MB"), (3.2e9, "3.2 GB")],
)
def test_bytes_are_shown_in_their_unit(value, shown):
    assert size(value) == shown
