"""Messages of plain exchanges as record files, made of a model alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedcore.state import ModelState
from fedcore.wire.record_file import StoredArray, StoredArrays, StoredValues, arrays_state, read_records, write_records
from fedcore.wire.tasks import MessageHead


def head(number: int = 1) -> MessageHead:
    """What a message says beside its content."""
    return MessageHead(message_id=f"message-{number}", group_id=str(number), created_at=1.0, ttl=60.0)


def save_message(path: Path, model: ModelState | None, metrics: Mapping[str, float] | None = None) -> None:
    """A record file with an ArrayRecord and a MetricRecord, or with neither."""
    arrays = tuple(
        StoredArray(
            name=name, dtype=str(value.dtype), shape=value.shape, stype="numpy.ndarray", form="npy", values=value
        )
        for name, value in (model.items() if model is not None else ())
    )
    records: list[StoredArrays | StoredValues] = []
    if model is not None:
        records.append(StoredArrays(key="arrays", arrays=arrays))
    if metrics:
        records.append(StoredValues(key="metrics", kind="metric", values=metrics))
    write_records(path, records)


def model_in(path: Path) -> ModelState | None:
    """The model of such a file."""
    records = read_records(path)
    return arrays_state(path, records[0], 0) if records and isinstance(records[0], StoredArrays) else None
