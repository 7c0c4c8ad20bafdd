"""The names of an exchange's metrics: part of the encoding, or, before they are known, of the sum.

Names that are known are public parameters like the scales, so a client that reports others has no place to put them.
Before the first exchange they are not known: then every client writes its names as canonical JSON, one byte to a field
that has room for a sum of them, and the sum is a multiple of those bytes if all that contributed agree. If they do not,
the sum tells that, and not who differs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import EncodingError

MetricName = tuple[str, int | None]
"""Name of a metric, and the length of its list; None for a single number."""

NAMES_BYTES = 1000
"""Most bytes that the names take if they travel in the sum, and so the fields of their section."""
QUERY_NAMES_BYTES = 4000
"""As many in a query, whose replies are numbers alone."""

_LONGEST_NAME = 200
_LARGEST_BYTE = 0xFF


def slot_count(names: Sequence[MetricName]) -> int:
    """How many values metrics with these names hold together."""
    return sum(1 if length is None else length for _, length in names)


def check_names(names: Sequence[MetricName], max_metrics: int) -> None:
    """Raise EncodingError unless `names` are sorted and unique, of sound lengths, and fit `max_metrics` values."""
    plain = [name for name, _ in names]
    if plain != sorted(set(plain)):
        raise EncodingError("the names of the metrics are not sorted and unique")
    for name, length in names:
        if not 1 <= len(name) <= _LONGEST_NAME or (length is not None and length < 1):
            raise EncodingError(
                f"metric {name[:_LONGEST_NAME]!r} is an empty list, or its name is not 1 to {_LONGEST_NAME} "
                "characters long",
                check="metric-name",
            )
    if (slots := slot_count(names)) > max_metrics:
        raise EncodingError(
            f"there are {slots} metric values, max-metrics allows {max_metrics}; report fewer, or raise it",
            check="metric-count",
        )


def names_text(names: Sequence[MetricName]) -> str:
    """Names and lengths for a person; "none" if there are none."""
    return ", ".join(name if length is None else f"{name}:{length}" for name, length in names) or "none"


def names_json(names: Sequence[MetricName]) -> bytes:
    """The one spelling of names and lengths, ASCII without spaces."""
    return json.dumps([list(name) for name in names], separators=(",", ":"), ensure_ascii=True).encode("ascii")


def names_length(n_max: int, room: int) -> int:
    """Words of the section `names` in a sum of up to `n_max`, with room for so many bytes."""
    return room * _field(n_max).itemsize // 8


def _field(n_max: int) -> np.dtype[Any]:
    """Of one byte of the names: 16 bits for 257 clients, 32 for more."""
    return np.dtype(np.uint16 if n_max * _LARGEST_BYTE < 1 << 16 else np.uint32 if n_max < 1 << 24 else np.uint64)


def names_words(names: Sequence[MetricName], n_max: int, room: int) -> NDArray[np.uint64]:
    """One client's section `names` ([names_length], uint64). Raises EncodingError if the names are too long."""
    text = names_json(names)
    if len(text) > room:
        raise EncodingError(
            f"the names of the metrics take {len(text)} bytes, {room} are allowed if the task does not name "
            "them; report fewer, or set train-metrics and evaluate-metrics",
            check="metric-names",
        )
    fields = np.zeros(room, _field(n_max))
    fields[: len(text)] = np.frombuffer(text, np.uint8)
    return fields.view(np.uint64)


def names_from_sum(
    words: NDArray[np.uint64], contributors: int, n_max: int, max_metrics: int
) -> tuple[MetricName, ...] | None:
    """The names that all `contributors` of up to `n_max` wrote, from the sum of their sections; None if they differ."""
    quotients, remainders = np.divmod(words.view(_field(n_max)).astype(np.uint64), np.uint64(contributors))
    if remainders.any() or (quotients > np.uint64(_LARGEST_BYTE)).any():
        return None
    text = quotients.astype(np.uint8).tobytes().rstrip(b"\0")
    try:
        names = tuple((name, length) for name, length in json.loads(text))
        if not all(type(name) is str and type(length) in (int, type(None)) for name, length in names):
            return None
        check_names(names, max_metrics)
    except (ValueError, TypeError, RecursionError, EncodingError):
        return None
    return names if names_json(names) == text else None
