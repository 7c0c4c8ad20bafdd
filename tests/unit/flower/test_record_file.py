"""Records through record files: any record exactly, and no file of a peer that is not sound."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stnp
from safetensors.numpy import load_file, save_file
from support.raising import raises

from fedcore.errors import AppError, PeerError
from fedcore.flower.records import load_records, save_records
from fedcore.state import ModelState
from fedcore.state.files import read_metadata
from fedcore.wire import record_file
from fedcore.wire.record_file import KEY, MemoryRecords, StoredValues, arrays_state, read_records, write_result

NAMES = st.text(max_size=8)
FLOATS = st.floats(width=64)
INTS = st.integers(-(2**63), 2**64 - 1)
SCALARS = (FLOATS, INTS, st.booleans(), st.text(max_size=8), st.binary(max_size=8))


def lists_and(kinds: tuple[st.SearchStrategy[Any], ...]) -> st.SearchStrategy[Any]:
    return st.one_of(*kinds, *(st.lists(kind, max_size=4) for kind in kinds))


DTYPES = st.one_of(
    stnp.scalar_dtypes(), stnp.unicode_string_dtypes(max_len=4), stnp.byte_string_dtypes(max_len=4)
).filter(lambda dtype: dtype.kind not in "mM")
NUMPY_ARRAYS = st.builds(
    lambda array, order: Array(np.asarray(array, order=order)),
    stnp.arrays(DTYPES, stnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)),
    st.sampled_from(["C", "F"]),
)
OWN_ARRAYS = st.builds(
    Array,
    dtype=NAMES,
    shape=st.lists(st.integers(-1, 2**40), max_size=3).map(tuple),
    stype=st.one_of(NAMES, st.just("numpy.ndarray")),
    data=st.binary(max_size=64),
)
LEGACY_ARRAYS = st.builds(lambda array: Array(dtype="", shape=(), stype="numpy.ndarray", data=array.data), NUMPY_ARRAYS)
ARRAYS = st.dictionaries(NAMES, st.one_of(NUMPY_ARRAYS, OWN_ARRAYS, LEGACY_ARRAYS), max_size=3).map(ArrayRecord)
METRICS = st.dictionaries(NAMES, lists_and((FLOATS, INTS)), max_size=3).map(MetricRecord)
CONFIGS = st.dictionaries(NAMES, lists_and(SCALARS), max_size=3).map(ConfigRecord)
RECORDS = st.dictionaries(NAMES, st.one_of(ARRAYS, METRICS, CONFIGS), max_size=4)


def through_a_file(folder: Path, content: RecordDict) -> RecordDict:
    path = folder / "records.safetensors"
    save_records(path, content)
    return load_records(path)


def told(content: RecordDict) -> Any:
    """Everything that two contents can differ in: order, kinds, types, and the bits of floats."""

    def value(given: Any) -> Any:
        return [value(item) for item in given] if isinstance(given, list) else (type(given), repr(given))

    def record(given: Any) -> Any:
        if isinstance(given, ArrayRecord):
            return [(name, one.dtype, one.shape, one.stype, one.data) for name, one in given.items()]
        return [(name, value(one)) for name, one in given.items()]

    return [(key, type(one), record(one)) for key, one in content.items()]


@given(records=RECORDS)
def test_any_records_come_out_as_they_went_in(
    records: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = RecordDict(records)
    assert told(through_a_file(tmp_path_factory.mktemp("records"), content)) == told(content)


@given(records=RECORDS)
def test_records_that_are_held_are_those_of_the_file(
    records: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    content, folder = RecordDict(records), tmp_path_factory.mktemp("records")
    held = MemoryRecords()
    save_records(held, content)
    save_records(folder / "file", content)
    held.save(folder / "held")
    assert told(load_records(held)) == told(content)
    assert (folder / "held").read_bytes() == (folder / "file").read_bytes()
    assert held.size == (folder / "file").stat().st_size


def test_a_model_that_is_held_is_a_copy() -> None:
    weights = np.zeros(3, np.float32)
    state = ModelState.from_arrays({"w": weights})
    held = MemoryRecords()
    write_result(held, StoredValues(key="m", kind="metric", values={}), "arrays", state.layout, state.write_to)
    weights += 1  # the next client trains in the same memory
    np.testing.assert_array_equal(load_records(held).array_records["arrays"]["w"].numpy(), np.zeros(3, np.float32))


def test_numbers_are_tensors_that_are_mapped(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    save_records(tmp_path / "r", RecordDict({"own": ArrayRecord({"w": Array(array)})}))
    np.testing.assert_array_equal(load_file(tmp_path / "r")["0.0"], array)


def test_bytes_do_not_swell(tmp_path: Path) -> None:
    save_records(tmp_path / "r", RecordDict({"c": ConfigRecord({"tree": b"\xff" * 100_000})}))
    assert (tmp_path / "r").stat().st_size < 101_000


def test_values_beyond_all_bounds_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_file, "MOST_HEADER_BYTES", 100)
    with raises(AppError, check="long-values", match=r"\b242\b.*\b100\b"):
        save_records(tmp_path / "r", RecordDict({"c": ConfigRecord({"text": "x" * 200})}))


def test_an_engine_writes_its_model_tensor_by_tensor(tmp_path: Path) -> None:
    state = ModelState.from_arrays({"b": np.arange(3, dtype=np.int64), "a": np.ones((2, 2), np.float32)})
    values = StoredValues(key="metrics", kind="metric", values={"num-examples": 3})
    write_result(tmp_path / "r", values, "arrays", state.layout, state.write_to)
    content = load_records(tmp_path / "r")
    assert list(content) == ["metrics", "arrays"]
    assert told(content)[1] == told(RecordDict({"arrays": ArrayRecord({n: Array(a) for n, a in state.items()})}))[0]
    found = arrays_state(tmp_path / "r", read_records(tmp_path / "r")[1], 1)  # type: ignore[arg-type]
    assert found.layout == state.layout


# --- files of a peer that lies --------------------------------------------------------------------------------------

Change = Callable[[dict[str, Any], dict[str, np.ndarray]], None]


def set_record(record: Any) -> Change:
    def change(header: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        header["records"][0] = record

    return change


def add_tensor(header: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    tensors["hidden"] = np.ones(3)


def rename_bytes(header: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    tensors["other"] = tensors.pop("bytes")


@pytest.mark.parametrize(
    "change",
    [
        lambda header, tensors: header.update(more=1),
        lambda header, tensors: header.update(records=None),
        lambda header, tensors: header["records"].append(header["records"][0]),
        add_tensor,
        rename_bytes,
        set_record(["pickle", "c", []]),
        set_record(["config", 3, []]),
        set_record(["config", "c", {}]),
        set_record(["config", "c"]),
        set_record(["config", "c", [["b", {"bytes": [0, 10**9]}]]]),
        set_record(["config", "c", [["b", {"bytes": [3, 1]}]]]),
        set_record(["config", "c", [["b", {"bytes": [0, 1], "more": 1}]]]),
        set_record(["config", "c", [["b", [{"bytes": [0, 3]}, {"bytes": [0, 3]}]]]]),
        set_record(["config", "c", [["b", {"bytes": [0, 2]}]]]),
        set_record(["config", "c", [["b", {"bytes": [0, 3.0]}]]]),
        set_record(["config", "c", []]),
        set_record(["config", "c", [["b", {"object": "os.system"}]]]),
        set_record(["config", "c", [["b", None]]]),
        set_record(["config", "c", [["b", [1, "a"]]]]),
        set_record(["config", "c", [["b", 1], ["b", 2]]]),
        set_record(["metric", "c", [["b", "text"]]]),
        set_record(["metric", "c", [[["b"], 1]]]),
        set_record(["array", "c", [["a", "float32", [1], "numpy.ndarray", "pickle"]]]),
        set_record(["array", "c", [["a", "float32", [1.5], "numpy.ndarray", "npy"]]]),
        set_record(["array", "c", [["a", "float32", [1], None, "npy"]]]),
    ],
)
def test_a_file_that_is_not_sound_is_refused(tmp_path: Path, change: Change) -> None:
    path = tmp_path / "r"
    content = RecordDict({"c": ConfigRecord({"b": b"abc"}), "a": ArrayRecord({"w": Array(np.ones(3))})})
    save_records(path, content)
    header, tensors = json.loads(read_metadata(path)[KEY]), dict(load_file(path))
    change(header, tensors)
    save_file(tensors, path, {KEY: json.dumps(header)})
    with raises(PeerError, check="record-file"):
        load_records(path)


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, '{"records": [["config", "c", [["b", 1' + "0" * 5000 + "]]]]}"]
)
def test_a_header_that_is_no_header_is_refused(tmp_path: Path, text: str) -> None:
    save_file({"bytes": np.empty(0, np.uint8)}, tmp_path / "r", {KEY: text})
    with raises(PeerError, check="record-file"):
        read_records(tmp_path / "r")


def test_bytes_that_claim_to_be_numpy_are_never_unpickled(tmp_path: Path) -> None:
    """As in Flower: what is no array in NumPy's format stays bytes until somebody asks for the array."""
    hostile = Array(dtype="object", shape=(1,), stype="numpy.ndarray", data=b"\x93NUMPY\x01\x00cos\nsystem\n.")
    content = through_a_file(tmp_path, RecordDict({"a": ArrayRecord({"w": hostile})}))
    with pytest.raises(ValueError, match=r"allow_pickle|EOF|header"):
        content.array_records["a"]["w"].numpy()


def test_nan_and_infinities_stay_what_they_are(tmp_path: Path) -> None:
    content = through_a_file(tmp_path, RecordDict({"m": MetricRecord({"x": [math.nan, math.inf, -math.inf, -0.0]})}))
    assert repr(content["m"]["x"]) == "[nan, inf, -inf, -0.0]"
