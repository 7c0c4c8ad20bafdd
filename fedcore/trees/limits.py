"""What a query for sums of trees states of the run's settings, for the owners of the clients to compare."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

MESSAGE_TYPE: Final = "query.tree_sums"
TEST_TYPE: Final = "query.tree_test"
FINE_BINS: Final = 1000
"""Cells between the bounds of a column, at whose edges bins may begin."""
DEPTH_KEY: Final = "trees-max-depth"
ROWS_KEY: Final = "trees-least-rows"


def stated_limits(message_type: str, configs: Mapping[str, Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Depth of the trees, and fewest rows of a node, that each record of the message states; none for other messages.

    What a record does not state as a number demands nothing here: no app answers such a query.
    """
    if message_type != MESSAGE_TYPE:
        return []
    return [(_number(one.get(DEPTH_KEY), 0), _number(one.get(ROWS_KEY), math.inf)) for one in configs.values()]


def _number(value: Any, missing: float) -> float:
    return float(value) if isinstance(value, int | float) else missing
