"""Between Flower's records and ours: arrays, configurations, and ids."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.metadata import Metadata
from numpy.typing import NDArray

from fedcore.errors import AppError, EncodingError, PeerError
from fedcore.flower.array_view import ArrayView, description, npy_header, view_of
from fedcore.state import Layout, ModelState, TensorSpec, from_float
from fedcore.state.model import NAME_OF
from fedcore.wire.record_file import (
    NUMPY,
    RecordLocation,
    StoredArray,
    StoredArrays,
    StoredRecord,
    StoredValues,
    check_flower_holds,
    read_records,
    write_records,
)

SERVER_NODE = 0
"""The node id of the ServerApp."""


def state_from_arrays(record: ArrayRecord, *, like: Layout | None = None) -> ModelState:
    """A state that shares the record's memory, its tensors in the order of `like` if the names agree.

    Raises AppError for an array that is not a NumPy one. (Flower cannot hold bfloat16: an app with bf16 parameters puts
    `tensor.float()` into its ArrayRecord, and `load_state_dict` casts back.)
    """
    names = list(record)
    if like is not None and {spec.name for spec in like.specs} == set(names):
        names = [spec.name for spec in like.specs]
    try:
        return ModelState.from_arrays({name: _ndarray(name, record[name]) for name in names})
    except EncodingError as error:
        raise AppError(str(error)) from None


def cast_to_layout(state: ModelState, layout: Layout | None) -> ModelState:
    """`state` with the dtypes of `layout` for the tensors that it names, as `load_state_dict` has them.

    Flower's averages turn integer buffers into float64, and FedAdam returns float64 parameters; the model keeps its
    own. A strategy may send more tensors in a training than in an evaluation. Raises EncodingError for a value that its
    dtype cannot hold, rounded or not.
    """
    if layout is None or state.layout == layout:
        return state
    known = {spec.name: spec for spec in layout.specs}
    # No Flower record has BF16, and its bits are no numbers that a cast would keep.
    specs = {spec.name: spec if spec.dtype == "BF16" else known.get(spec.name, spec) for spec in state.layout.specs}
    return ModelState.from_arrays(
        {name: _cast(state[name], spec) for name, spec in specs.items()},
        dtypes={name: spec.dtype for name, spec in specs.items()},
    )


def arrays_from_state(state: ModelState) -> ArrayRecord:
    """An ArrayRecord over the tensors of the state, which nobody changes any more.

    Raises AppError for bfloat16, which Flower cannot hold.
    """
    check_flower_holds(state.layout)
    return _array_record({name: ArrayView(array) for name, array in state.items()})


def _array_record(arrays: Mapping[str, Array]) -> ArrayRecord:
    """`ArrayRecord(arrays)` would make every Array a second time, with a copy of its bytes."""
    record = ArrayRecord()
    for name, array in arrays.items():
        record[name] = array
    return record


def save_records(location: RecordLocation, content: RecordDict, *, durable: bool = True) -> None:
    """Write all records of a message as a record file; raises AppError if they take too much, StorageFull."""
    write_records(location, [_stored(key, record) for key, record in content.items()], durable=durable)


def load_records(location: RecordLocation) -> RecordDict:
    """All records of a record file, in memory; raises PeerError for what is no sound one."""
    content = RecordDict()
    for record in read_records(location):
        try:
            content[record.key] = _flower_record(record)
        except TypeError:
            reason = "a value is of no type that Flower knows"
            raise PeerError(f"{location.name} is not a sound record file: {reason}") from None
    return content


def config_to_json(record: ConfigRecord) -> dict[str, Any]:
    """A ConfigRecord as plain JSON; bytes become {"base64": text}."""
    return {key: _to_json(value) for key, value in record.items()}


def config_from_json(values: Mapping[str, Any]) -> ConfigRecord:
    """The inverse of `config_to_json`."""
    return ConfigRecord({key: _from_json(value) for key, value in values.items()})


def merged_values(configs: Iterable[ConfigRecord]) -> dict[str, Any]:
    """The values of all ConfigRecords of a message; of the same key in two, the later one's."""
    return {key: value for config in configs for key, value in config.items()}


def message_from(content: RecordDict, metadata: Metadata) -> Message:
    """A message with the given metadata.

    Flower's public signatures take the metadata from a TaskIdentity of the whole process instead; this one it keeps
    for itself, and its type hints leave it out.
    """
    return cast(Callable[..., Message], Message)(content=content, metadata=metadata)


def error_from(error: Error, metadata: Metadata) -> Message:
    """A reply with an error instead of records; as `message_from`."""
    return cast(Callable[..., Message], Message)(error=error, metadata=metadata)


def run_id_of(run: str) -> int:
    """Flower's run id, an unsigned 64-bit integer, from the name of one of our runs."""
    return int.from_bytes(hashlib.sha256(run.encode()).digest()[:8], "big")


def _ndarray(name: str, array: Array) -> NDArray[Any]:
    """The array behind Flower's serialised form, without a copy (NumPy's .npy format, version 1.0 to 3.0)."""
    if array.stype != NUMPY:
        raise AppError(f"array {name!r} is serialised as {array.stype!r}; fedcore reads {NUMPY!r} only")
    if (values := view_of(array)) is not None:
        return values
    stream = io.BytesIO(array.data)
    try:
        version = np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(stream)
        if dtype.hasobject:
            raise ValueError("object arrays are refused")
        flat = np.frombuffer(array.data, dtype=dtype, offset=stream.tell())
        shaped: NDArray[Any] = flat.reshape(shape, order="F" if fortran else "C")
        return shaped
    except ValueError as error:
        raise AppError(f"array {name!r} is not a valid NumPy array: {error}", check="not-an-array") from None


def _cast(array: NDArray[Any], spec: TensorSpec) -> NDArray[Any]:
    if array.dtype == spec.storage:
        return array
    if spec.is_float:
        return from_float(spec, array)
    rounded = np.rint(array) if array.dtype.kind == "f" else array
    with np.errstate(invalid="ignore"):
        integers: NDArray[Any] = rounded.astype(spec.storage)
    if not np.array_equal(integers, rounded):
        raise EncodingError(
            f"tensor {spec.name!r} holds values that its dtype {spec.dtype} cannot", check="dtype-overflow"
        )
    return integers


def _stored(key: str, record: ArrayRecord | MetricRecord | ConfigRecord) -> StoredRecord:
    if isinstance(record, ArrayRecord):
        return StoredArrays(key=key, arrays=tuple(_stored_array(name, array) for name, array in record.items()))
    kind: Literal["metric", "config"] = "metric" if isinstance(record, MetricRecord) else "config"
    return StoredValues(key=key, kind=kind, values=cast(Any, dict(record)))


def _stored_array(name: str, array: Array) -> StoredArray:
    """As a tensor if reading it makes the very same array again, else as the bytes that it is."""
    tensor = _tensor_of(array)
    values, form = (np.frombuffer(array.data, np.uint8), "raw") if tensor is None else (tensor, "npy")
    return StoredArray(
        name=name, dtype=array.dtype, shape=tuple(array.shape), stype=array.stype, form=cast(Any, form), values=values
    )


def _tensor_of(array: Array) -> NDArray[Any] | None:
    try:
        tensor = _ndarray("", array)
    except AppError:
        return None
    if tensor.dtype not in NAME_OF or not tensor.flags.c_contiguous:
        return None
    if view_of(array) is not None:
        return tensor
    header = npy_header(tensor.dtype, tensor.shape)
    return tensor if len(array.data) == len(header) + tensor.nbytes and array.data.startswith(header) else None


def _flower_record(record: StoredRecord) -> ArrayRecord | MetricRecord | ConfigRecord:
    if isinstance(record, StoredArrays):
        return _array_record({array.name: _flower_array(array) for array in record.arrays})
    kind = MetricRecord if record.kind == "metric" else ConfigRecord
    return kind(cast(Any, dict(record.values)))


def _flower_array(array: StoredArray) -> Array:
    if array.form == "npy" and (array.dtype, array.shape, array.stype) == description(array.values):
        return ArrayView(array.values)
    header = npy_header(array.values.dtype, array.values.shape) if array.form == "npy" else b""
    data = b"".join((header, array.values.data))  # one copy
    return Array(dtype=array.dtype, shape=array.shape, stype=array.stype, data=data)


def _to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    return value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return base64.b64decode(cast(str, value["base64"]), validate=True)
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    return value


def round_of(message: Message) -> int:
    """The round that the message names, in a configuration or as its group; 0 if it names none."""
    for record in message.content.config_records.values():
        number = record.get("server-round")
        if isinstance(number, int) and not isinstance(number, bool) and number > 0:
            return number
    group = message.metadata.group_id
    return int(group) if group.isdecimal() and len(group) < 10 else 0
