"""Replies to a query in secure mode, where only the sum over the clients of each number ever becomes known.

A reply may hold any number of MetricRecords. Each number, and each element of each list, is added up over the clients;
the ServerApp gets one reply with the sums, under the same record keys and names. The shapes of an ArrayRecord have no
place in the sum, and in a ConfigRecord there is nothing to add up, so these are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from flwr.app import MetricRecord, RecordDict

from fedcore.codec.names import QUERY_NAMES_BYTES, names_json
from fedcore.errors import AppError
from fedcore.wire.base import MetricValue


def numbers_of(content: RecordDict, query_max: float) -> dict[str, MetricValue]:
    """The numbers of a reply, each named after its record and itself; raises AppError for what has no place in a sum.

    Args:
        query_max: the largest of them, the setting of that name.
    """
    if content.array_records:
        raise AppError(
            f"the reply to a query holds the ArrayRecord {next(iter(content.array_records))!r}; with secure "
            "aggregation the numbers of MetricRecords are added up over the clients: put the values there, as a list "
            "(array.ravel().tolist())"
        )
    if content.config_records:
        raise AppError(
            f"the reply to a query holds the ConfigRecord {next(iter(content.config_records))!r}; with secure "
            "aggregation the numbers of MetricRecords are added up over the clients, and nothing else is sent"
        )
    numbers = {
        _joined(key, name): value for key, record in content.metric_records.items() for name, value in record.items()
    }
    if not numbers:
        raise AppError("the reply to a query holds no number; put what is to be added up into a MetricRecord")
    _check_room(numbers, query_max)
    return cast(dict[str, MetricValue], numbers)


def _check_room(numbers: Mapping[str, Any], query_max: float) -> None:
    """Say what to do if the codec would complain about metrics."""
    lengths = {name: len(value) if isinstance(value, list) else None for name, value in numbers.items()}
    if (size := len(names_json(sorted(lengths.items())))) > QUERY_NAMES_BYTES:
        raise AppError(
            f"the names in the reply to a query take {size} bytes, {QUERY_NAMES_BYTES} have room; put several numbers "
            "into one list, or ask several queries"
        )
    for name, value in numbers.items():
        largest = max(map(abs, value), default=0) if isinstance(value, list) else abs(value)
        if largest > query_max:
            raise AppError(
                f"number {name!r} in the reply to a query is {largest:g}, the limit is {query_max:g}; raise query-max, "
                "or report it in another unit"
            )


def records_of(sums: Mapping[str, MetricValue]) -> RecordDict:
    """The inverse of `numbers_of`: the sums as the records that they came from."""
    records: dict[str, dict[str, Any]] = {}
    for joined, value in sums.items():
        key, name = _split(joined)
        records.setdefault(key, {})[name] = value
    return RecordDict({key: MetricRecord(record) for key, record in records.items()})


def _joined(key: str, name: str) -> str:
    """`key/name`; a slash in the key is written otherwise, so that the first one parts the two."""
    return f"{key.replace('%', '%25').replace('/', '%2F')}/{name}"


def _split(joined: str) -> tuple[str, str]:
    key, _, name = joined.partition("/")
    return key.replace("%2F", "/").replace("%25", "%"), name
