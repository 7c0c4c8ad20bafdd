"""Messages of plain exchanges as record files, made of a model alone."""

from __future__ import annotations

from pathlib import Path

from fedcore.flower.record_file import StoredArray, StoredArrays, arrays_state, read_records, write_records
from fedcore.state import ModelState
from fedcore.wire import MessageHead


def head(number: int = 1) -> MessageHead:
    """What a message says beside its content."""
    return MessageHead(message_id=f"message-{number}", group_id=str(number), created_at=1.0, ttl=60.0)


def save_message(path: Path, model: ModelState | None) -> None:
    """A record file with one ArrayRecord, or with nothing."""
    arrays = tuple(
        StoredArray(
            name=name, dtype=str(value.dtype), shape=value.shape, stype="numpy.ndarray", form="npy", values=value
        )
        for name, value in (model.items() if model is not None else ())
    )
    write_records(path, [StoredArrays(key="arrays", arrays=arrays)] if model is not None else [])


def model_in(path: Path) -> ModelState | None:
    """The model of such a file."""
    records = read_records(path)
    return arrays_state(path, records[0], 0) if records and isinstance(records[0], StoredArrays) else None
