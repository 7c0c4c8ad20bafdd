"""Record files: all records of a Flower message in one safetensors file, without Flower.

An array that is a NumPy one is a tensor, so that it is mapped and not parsed; any other, of whatever serialisation, is
the bytes that Flower holds. The values of metrics and configurations, and what else belongs to an array, are JSON in
the file's metadata; the bytes among them lie one after the other in a tensor of their own. A reader trusts no size, no
name and no type in a file: a peer wrote it.

    {"records": [["array", KEY, [[NAME, DTYPE, SHAPE, STYPE, "npy" or "raw"], ...]],
                 ["metric" or "config", KEY, [[NAME, VALUE], ...]], ...]}

Tensor "i.j" is array j of record i. A VALUE is a JSON scalar, a list of them, or {"bytes": [start, end]}.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import AppError, EncodingError, PeerError
from fedcore.state import FileSink, Layout, MemorySink, ModelState, StateSink, TensorSpec
from fedcore.state.files import file_size

Scalar: TypeAlias = bool | int | float | str | bytes
Value: TypeAlias = Scalar | list[bool] | list[int] | list[float] | list[str] | list[bytes]
KEY: Final = "fedcore-records-v1"
NUMPY: Final = "numpy.ndarray"
"""Flower's name for arrays in NumPy's own format."""
BYTES: Final = "bytes"
MOST_HEADER_BYTES: Final = 64 << 20
"""Of the JSON in a file's metadata; readers of safetensors refuse headers of more than 100 MB."""
_NONE: Final[NDArray[Any]] = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArray:
    """One array as Flower describes it.

    form: whether `values` are the array itself, or uint8 of what Flower holds.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    stype: str
    form: Literal["npy", "raw"]
    values: NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArrays:
    """An ArrayRecord."""

    key: str
    arrays: tuple[StoredArray, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredValues:
    """A MetricRecord or a ConfigRecord."""

    key: str
    kind: Literal["metric", "config"]
    values: Mapping[str, Value]


StoredRecord: TypeAlias = StoredArrays | StoredValues


class MemoryRecords:
    """What would be a record file, in memory: a reply that is read where it was made.

    state: its tensors, and their metadata; empty until it is written to.
    """

    __slots__ = ("state",)
    name = "a reply"
    """What it is called in place of a file's name."""

    def __init__(self) -> None:
        self.state = ModelState.from_arrays({})

    @property
    def size(self) -> int:
        """Bytes of the file that it would be."""
        return file_size(self.state.layout, self.state.metadata)

    def save(self, path: Path) -> None:
        """Write the file; raises StorageFull."""
        _write(path, self.state.layout, self.state.metadata, self.state.write_to)


RecordLocation: TypeAlias = Path | MemoryRecords
"""Where records are written to, and read from."""


# --- writing --------------------------------------------------------------------------------------------------------


def write_records(location: RecordLocation, records: Sequence[StoredRecord], *, durable: bool = True) -> None:
    """Write a record file, whole or not at all. Raises AppError if its header grows too long, StorageFull."""
    arrays = {
        _tensor(number, index): array.values
        for number, record in enumerate(records)
        if isinstance(record, StoredArrays)
        for index, array in enumerate(record.arrays)
    }
    header = _Header(records)
    state = ModelState.from_arrays({**arrays, BYTES: header.bytes_tensor()})
    _write(location, state.layout, header.metadata(), state.write_to, durable=durable)


def write_result(
    location: RecordLocation,
    values: StoredValues,
    key: str,
    layout: Layout,
    write: Callable[[StateSink], None],
    *,
    durable: bool = True,
) -> None:
    """Write the records of a trained model: `values` first, then an ArrayRecord `key` that `write` hands over.

    `write` gives every tensor of `layout` to its argument, block by block. Raises AppError for bfloat16, StorageFull.
    """
    check_flower_holds(layout)
    specs = {spec.name: replace(spec, name=_tensor(1, index)) for index, spec in enumerate(layout.specs)}
    arrays = tuple(
        StoredArray(name=spec.name, dtype=str(spec.storage), shape=spec.shape, stype=NUMPY, form="npy", values=_NONE)
        for spec in layout.specs
    )
    header = _Header((values, StoredArrays(key=key, arrays=arrays)))
    tail = ModelState.from_arrays({BYTES: header.bytes_tensor()})

    def write_all(sink: StateSink) -> None:
        write(_Renaming(sink, specs))
        tail.write_to(sink)

    _write(location, Layout(specs=(*specs.values(), *tail.layout.specs)), header.metadata(), write_all, durable=durable)


def _write(
    location: RecordLocation,
    layout: Layout,
    metadata: Mapping[str, str],
    write: Callable[[StateSink], None],
    *,
    durable: bool = True,
) -> None:
    """Put there what `write` hands over, as a copy."""
    if isinstance(location, Path):
        with FileSink(location, layout, metadata, durable=durable) as file:
            write(file)
        return
    memory = MemorySink(layout)
    write(memory)
    location.state = memory.state()
    location.state.metadata = metadata


def check_flower_holds(layout: Layout) -> None:
    """Raise AppError for bfloat16, which a Flower ArrayRecord cannot hold."""
    for spec in layout.specs:
        if spec.dtype == "BF16":
            raise AppError(
                f"tensor {spec.name!r} is bfloat16, which a Flower ArrayRecord cannot hold; send it as float32"
            )


@dataclass(frozen=True, slots=True)
class _Renaming:
    """A sink for tensors that have other names in the file.

    specs: there, by the names here.
    """

    sink: StateSink
    specs: Mapping[str, TensorSpec]

    def write(self, spec: TensorSpec, start: int, block: NDArray[Any]) -> None:
        self.sink.write(self.specs[spec.name], start, block)


class _Header:
    """The JSON of a file, and the bytes that stand in it by their place."""

    def __init__(self, records: Sequence[StoredRecord]) -> None:
        self._bytes = bytearray()
        listed = [self._record(record) for record in records]
        self._text = json.dumps({"records": listed}, separators=(",", ":"))
        if len(self._text) > MOST_HEADER_BYTES:
            raise AppError(
                f"the values of the message's MetricRecords and ConfigRecords take {len(self._text)} characters, more "
                f"than {MOST_HEADER_BYTES}; send them as an array, or as bytes",
                check="long-values",
            )

    def metadata(self) -> dict[str, str]:
        return {KEY: self._text}

    def bytes_tensor(self) -> NDArray[np.uint8]:
        return np.frombuffer(bytes(self._bytes), np.uint8)

    def _record(self, record: StoredRecord) -> list[Any]:
        if isinstance(record, StoredArrays):
            listed = [[one.name, one.dtype, list(one.shape), one.stype, one.form] for one in record.arrays]
            return ["array", record.key, listed]
        return [record.kind, record.key, [[name, self._value(value)] for name, value in record.values.items()]]

    def _value(self, value: Value) -> Any:
        if isinstance(value, list):
            return [self._value(item) for item in value]
        if isinstance(value, bytes):
            self._bytes += value
            return {BYTES: [len(self._bytes) - len(value), len(self._bytes)]}
        return value


def _tensor(number: int, index: int) -> str:
    return f"{number}.{index}"


# --- reading --------------------------------------------------------------------------------------------------------


def read_records(location: RecordLocation) -> tuple[StoredRecord, ...]:
    """The records of a file, their arrays mapped; raises PeerError for what is no sound record file."""
    try:
        state = ModelState.open(location) if isinstance(location, Path) else location.state
        text = state.metadata.get(KEY, "")
        if len(text) > MOST_HEADER_BYTES:
            raise _unsound(location.name, "its header is too long")
        document = json.loads(text)
        return _RecordReader(location.name, state).records(document)
    except EncodingError as error:
        raise _unsound(location.name, str(error)) from None
    except (ValueError, TypeError, LookupError, RecursionError):
        raise _unsound(location.name, "its records cannot be read") from None


def arrays_state(path: Path, record: StoredArrays, number: int) -> ModelState:
    """The tensors of an ArrayRecord, the record with this number in a file, as the mapped state of a model.

    Raises AppError for an array that is no tensor.
    """
    if raw := [array.name for array in record.arrays if array.form == "raw"]:
        raise AppError(f"array {raw[0]!r} is not a NumPy array of numbers, which an engine needs")
    names = {array.name: _tensor(number, index) for index, array in enumerate(record.arrays)}
    return ModelState.open(path).renamed(names)


def config_values(records: Sequence[StoredRecord]) -> dict[str, dict[str, Value]]:
    """The values of all ConfigRecords, by the record's key."""
    return {
        record.key: dict(record.values)
        for record in records
        if isinstance(record, StoredValues) and record.kind == "config"
    }


@dataclass(slots=True)
class _RecordReader:
    """Checks that what the JSON of a file says and the tensors that are there are the same.

    _position: how many of the bytes belong to the values so far; each belongs to one value, so they take no more than
        the file.
    """

    name: str
    state: ModelState
    _position: int = 0

    def records(self, document: Any) -> tuple[StoredRecord, ...]:
        if not isinstance(document, dict) or list(document) != ["records"] or not isinstance(document["records"], list):
            raise _unsound(self.name, "its header is not that of a record file")
        records = tuple(self._record(number, entry) for number, entry in enumerate(document["records"]))
        if len({record.key for record in records}) < len(records):
            raise _unsound(self.name, "two records have the same name")
        named = sum(len(record.arrays) for record in records if isinstance(record, StoredArrays))
        if named + 1 != len(self.state) or BYTES not in self.state:
            raise _unsound(self.name, "it holds tensors that no record names")
        if self._position != self.state[BYTES].size:
            raise _unsound(self.name, "it holds bytes that no value names")
        return records

    def _record(self, number: int, entry: Any) -> StoredRecord:
        kind, key, items = entry
        if not isinstance(key, str) or not isinstance(items, list):
            raise _unsound(self.name, "a record has no name or no content")
        record: StoredRecord
        if kind == "array":
            arrays = tuple(self._array(_tensor(number, index), item) for index, item in enumerate(items))
            record, names = StoredArrays(key=key, arrays=arrays), [array.name for array in arrays]
        elif kind in ("metric", "config"):
            values = {name: self._value(value) for name, value in items}
            record, names = StoredValues(key=key, kind=kind, values=values), list(values)
        else:
            raise _unsound(self.name, "a record is of no known kind")
        if len(set(names)) < len(items) or not all(isinstance(name, str) for name in names):
            raise _unsound(self.name, "two values of a record have the same name, or one has none")
        return record

    def _array(self, tensor: str, item: Any) -> StoredArray:
        name, dtype, shape, stype, form = item
        if not all(isinstance(text, str) for text in (name, dtype, stype)) or form not in ("npy", "raw"):
            raise _unsound(self.name, "an array is not described as it should be")
        if not isinstance(shape, list) or not all(type(size) is int for size in shape) or tensor not in self.state:
            raise _unsound(self.name, "an array has no shape, or is not there")
        values = self.state[tensor]
        if form == "raw" and (values.dtype != np.uint8 or values.ndim != 1):
            raise _unsound(self.name, "an array that is kept as bytes is none")
        return StoredArray(name=name, dtype=dtype, shape=tuple(shape), stype=stype, form=form, values=values)

    def _value(self, value: Any) -> Value:
        if isinstance(value, list):
            return cast(Value, [self._scalar(item) for item in value])
        return self._scalar(value)

    def _scalar(self, value: Any) -> Scalar:
        if isinstance(value, bool | int | float | str):
            return value
        start, end = value[BYTES]
        content = self.state[BYTES]
        if (
            list(value) != [BYTES]
            or content.dtype != np.uint8
            or start != self._position
            or not start <= end <= content.size
        ):
            raise _unsound(self.name, "a value lies outside of the file, or in another one")
        self._position = end
        return content[start:end].tobytes()


def _unsound(name: str, reason: str) -> PeerError:
    return PeerError(f"{name} is not a sound record file: {reason}", check="record-file")
