import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from support.raising import raises

from fedcore.errors import AppError, EncodingError
from fedcore.flower.records import (
    arrays_from_state,
    cast_to_layout,
    config_from_json,
    config_to_json,
    run_id_of,
    state_from_arrays,
)
from fedcore.state import ModelState

ARRAYS = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "fortran": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "n": np.array(7, np.int64),
    "h": np.array([1.5], np.float16),
    "empty": np.zeros((0, 2), np.float32),
}


def test_arrays_survive_the_round_trip() -> None:
    state = state_from_arrays(ArrayRecord({name: Array(value) for name, value in ARRAYS.items()}))
    back = arrays_from_state(state)
    assert list(back) == list(ARRAYS)
    for name, value in ARRAYS.items():
        np.testing.assert_array_equal(back[name].numpy(), value)
        assert back[name].numpy().dtype == value.dtype


def test_the_order_of_the_model_wins() -> None:
    model = ModelState.from_arrays({"a": np.zeros(1, np.float32), "b": np.zeros(2, np.float32)})
    shuffled = ArrayRecord({"b": Array(np.ones(2, np.float32)), "a": Array(np.ones(1, np.float32))})
    assert state_from_arrays(shuffled, like=model.layout).layout == model.layout


def test_the_model_keeps_its_dtypes() -> None:
    model = ModelState.from_arrays({"w": np.zeros(2, np.float32), "n": np.array(0, np.int64)})
    averaged = ModelState.from_arrays({"w": np.array([0.25, 1.0]), "n": np.array(2.9999999)})
    kept = cast_to_layout(averaged, model.layout)
    assert kept.layout == model.layout
    np.testing.assert_array_equal(kept["w"], np.array([0.25, 1.0], np.float32))
    assert kept["n"] == 3


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(np.uint8, 300.0), (np.int8, -129.0), (np.int64, 2.0**63), (np.int64, np.nan), (np.bool_, 2.0), (np.float16, 1e6)],
)
def test_a_value_that_its_dtype_cannot_hold_is_refused(dtype: type, value: float) -> None:
    model = ModelState.from_arrays({"n": np.zeros(1, dtype)})
    with raises(EncodingError, check="dtype-overflow", match="'n'"):
        cast_to_layout(ModelState.from_arrays({"n": np.array([value])}), model.layout)


def test_the_bits_of_bfloat16_are_not_taken_for_numbers() -> None:
    model = ModelState.from_arrays({"w": np.zeros(1, np.float32)})
    sent = ModelState.from_arrays({"w": np.array([0x3F80], np.uint16)}, dtypes={"w": "BF16"})
    assert cast_to_layout(sent, model.layout).layout == sent.layout


@pytest.mark.parametrize(
    "array",
    [
        Array(dtype="float32", shape=(1,), stype="torch", data=b""),
        Array(dtype="float32", shape=(1,), stype="numpy.ndarray", data=b"no npy"),
        Array(dtype="float32", shape=(9,), stype="numpy.ndarray", data=Array(np.zeros(9, np.float32)).data[:-4]),
        Array(np.array(["text"])),
    ],
)
def test_what_is_no_numeric_array_is_refused(array: Array) -> None:
    with pytest.raises(AppError, match="'w'"):
        state_from_arrays(ArrayRecord({"w": array}))


def test_pickled_objects_are_refused() -> None:
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n"
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\x80\x04N."
    with raises(AppError, check="not-an-array"):
        state_from_arrays(ArrayRecord({"w": Array(dtype="object", shape=(1,), stype="numpy.ndarray", data=data)}))


def test_bfloat16_cannot_go_into_a_flower_record() -> None:
    state = ModelState.from_arrays({"w": np.zeros(2, np.uint16)}, dtypes={"w": "BF16"})
    with pytest.raises(AppError, match=r"bfloat16.*float32"):
        arrays_from_state(state)


def test_configurations_survive_json() -> None:
    record = ConfigRecord({"a": 1, "b": 0.5, "c": "x", "d": b"\x00\xff", "e": [1, 2], "f": True, "g": [b"x"]})
    assert dict(config_from_json(config_to_json(record))) == dict(record)


def test_run_ids_fit_into_flower() -> None:
    assert 0 <= run_id_of("r") < 2**64
    assert run_id_of("r") != run_id_of("s")
