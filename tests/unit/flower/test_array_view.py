"""Arrays over values that are there already are what Flower's own are."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords
from numpy.typing import NDArray

from fedcore.flower.array_view import ArrayView, aggregate_views, view_of
from fedcore.flower.records import arrays_from_state, load_records, save_records, state_from_arrays
from fedcore.state import ModelState

VALUES = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array(7, np.int64),
    np.zeros((0, 4), np.float64),
    np.array([True, False]),
    np.arange(4, dtype=np.float16),
]


@pytest.mark.parametrize("values", VALUES, ids=lambda values: f"{values.dtype} {values.shape}")
def test_equals_flowers_array(values: NDArray[Any]) -> None:
    view, own = ArrayView(values), Array(values)
    assert view == own
    assert own == view
    assert view.data == own.data
    assert (view.dtype, view.shape, view.stype) == (own.dtype, own.shape, own.stype)
    assert view.deflate() == own.deflate()
    assert copy.deepcopy(view) == own
    assert pickle.loads(pickle.dumps(view)) == own
    np.testing.assert_array_equal(view.numpy(), values, strict=True)


def test_numpy_gives_a_copy_that_may_be_changed() -> None:
    values = np.ones(3, np.float32)
    view = ArrayView(values)
    view.numpy()[:] = 5
    assert view.numpy().tolist() == [1, 1, 1]


def test_data_that_is_written_counts() -> None:
    view = ArrayView(np.ones(3, np.float32))
    view.data = Array(np.full(3, 2, np.float32)).data
    assert view.numpy().tolist() == [2, 2, 2]
    assert state_from_arrays(ArrayRecord({"a": view}))["a"].tolist() == [2, 2, 2]


def test_a_record_file_is_mapped_and_not_copied(tmp_path: Path) -> None:
    content = RecordDict({"arrays": ArrayRecord({str(i): Array(values) for i, values in enumerate(VALUES)})})
    save_records(tmp_path / "one", content)
    loaded = load_records(tmp_path / "one")
    assert loaded == content
    assert all(isinstance(array, ArrayView) for array in loaded["arrays"].values())
    save_records(tmp_path / "two", loaded)
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()


def test_a_state_and_its_record_share_memory() -> None:
    values = np.ones(3, np.float32)
    record = arrays_from_state(ModelState.from_arrays({"a": values}))
    assert np.shares_memory(state_from_arrays(record)["a"], values)


def reply(seed: int, weight: float, kind: type[Array] = ArrayView) -> RecordDict:
    rng = np.random.default_rng(seed)
    arrays = ArrayRecord()
    for number, values in enumerate(VALUES):
        arrays[str(number)] = kind(np.asarray(rng.normal(size=values.shape) * 10).astype(values.dtype))
    return RecordDict({"arrays": arrays, "metrics": MetricRecord({"weight": weight})})


@pytest.mark.parametrize("weights", [[7], [1, 2.5], [3, 0, 9]])
def test_a_mean_has_the_bits_of_flowers(weights: list[float]) -> None:
    replies = [reply(seed, weight) for seed, weight in enumerate(weights)]
    expected = aggregate_arrayrecords(replies, "weight")
    mean = aggregate_views(replies, "weight")
    assert mean == expected
    assert list(mean) == list(expected)


def test_a_single_reply_is_its_own_mean_without_a_copy() -> None:
    one = reply(1, 5)
    mean = aggregate_views([one], "weight")
    assert np.shares_memory(present(mean["0"]), present(one.array_records["arrays"]["0"]))


def test_arrays_of_flowers_own_are_averaged_by_flower() -> None:
    replies = [reply(1, 1, Array), reply(2, 3)]
    assert aggregate_views(replies, "weight") == aggregate_arrayrecords(replies, "weight")


def present(array: Array) -> NDArray[Any]:
    view = view_of(array)
    assert view is not None
    return view
