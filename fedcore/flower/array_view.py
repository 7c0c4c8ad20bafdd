"""Flower's Array over values that are in memory, or in a mapped file, already."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.serverapp.strategy import fedavg
from numpy.typing import NDArray

from fedcore.wire.record_file import NUMPY


class ArrayView(Array):
    """An Array whose bytes are made when somebody asks for them.

    Flower's own holds its values in NumPy's .npy format, a copy of them all. Strategies read a model of gigabytes once,
    tensor by tensor, by `numpy()`. What is written to `data` counts from then on.

    Args:
        values: any shape, of a dtype that .npy has; nobody writes to it any more.
    """

    def __init__(self, values: NDArray[Any]) -> None:
        self.dtype, self.shape, self.stype = description(values)
        self._values = np.ascontiguousarray(values).reshape(values.shape)

    @property
    def view(self) -> NDArray[Any] | None:
        """The values, only to be read; None if somebody has given the Array other bytes, or described it otherwise."""
        described = (self.dtype, self.shape, self.stype) == description(self._values)
        return self._values if described and "data" not in self.__dict__ else None

    def rest_on(self, values: NDArray[Any]) -> None:
        """The same values lie elsewhere from now on, and where they lay is free; nothing changes if others were set."""
        if (view := self.view) is not None and (view.dtype, view.shape) == (values.dtype, values.shape):
            self._values = values

    def __getattr__(self, name: str) -> Any:
        if name != "data" or "_values" not in self.__dict__:
            raise AttributeError(name)
        return b"".join((npy_header(self._values.dtype, self._values.shape), self._values.data))

    def numpy(self) -> NDArray[Any]:
        """The values, a copy that may be changed, as Flower gives it."""
        values: NDArray[Any] = super().numpy() if self.view is None else self._values.copy()
        return values

    def deflate(self) -> bytes:
        """The bytes that Flower's own has, in whose header its class stands."""
        return Array(dtype=self.dtype, shape=self.shape, stype=self.stype, data=self.data).deflate()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Array):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in ("dtype", "shape", "stype", "data"))

    __hash__ = None  # type: ignore[assignment]  # as Flower's


def description(values: NDArray[Any]) -> tuple[str, tuple[int, ...], str]:
    """dtype, shape and stype of Flower's Array of these values."""
    return str(values.dtype), tuple(values.shape), NUMPY


def view_of(array: Array) -> NDArray[Any] | None:
    """The values of an Array that lie there already; None if it holds bytes."""
    return array.view if isinstance(array, ArrayView) else None


@functools.lru_cache(maxsize=4096)
def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """What NumPy writes before the values of an array in C order."""
    stream = io.BytesIO()
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()


_MEAN: Final = "aggregate_arrayrecords"
_FLOWERS_MEAN: Final[Callable[[list[RecordDict], str], ArrayRecord]] = vars(fedavg)[_MEAN]


def aggregate_views(records: list[RecordDict], weighting_metric_name: str) -> ArrayRecord:
    """Flower's `aggregate_arrayrecords`, bit for bit, without its copies of the model.

    Flower computes the whole mean before it makes Arrays of it, each with a copy. Here one tensor follows another, and
    a single reply, whose factor is 1, is its own mean: its floating point tensors stay where they are, in a mapped
    file. Flower itself averages what does not consist of ArrayViews in one ArrayRecord a reply.
    """
    views = [_views_in(record) for record in records]
    present = [one for one in views if one is not None]
    if not present or len(present) < len(records) or any(list(one) != list(present[0]) for one in present):
        return _FLOWERS_MEAN(records, weighting_metric_name)
    metrics = [next(iter(record.metric_records.values())) for record in records]
    weights: list[Any] = [values[weighting_metric_name] for values in metrics]
    total = sum(weights)
    factors = [weight / total for weight in weights]
    mean = ArrayRecord()
    for name in present[0]:
        mean[name] = ArrayView(_weighted([one[name] for one in present], factors))
    return mean


@contextmanager
def averaging_views() -> Iterator[None]:
    """Let Flower's averages use `aggregate_views`, until the block ends or an app puts its own function there."""
    setattr(fedavg, _MEAN, aggregate_views)
    try:
        yield
    finally:
        setattr(fedavg, _MEAN, _FLOWERS_MEAN)


def _views_in(record: RecordDict) -> dict[str, NDArray[Any]] | None:
    """The values of a record's one ArrayRecord; None if they do not all lie there already."""
    arrays = list(record.array_records.values())
    views = {name: view_of(array) for name, array in arrays[0].items()} if len(arrays) == 1 else {}
    present = {name: view for name, view in views.items() if view is not None}
    return present if present and len(present) == len(views) else None


def _weighted(values: Sequence[NDArray[Any]], factors: Sequence[float]) -> NDArray[Any]:
    """The sum of values times factors, computed as Flower does."""
    if len(values) == 1 and factors[0] == 1 and values[0].dtype.kind == "f":
        return values[0]
    total = values[0] * factors[0]
    for value, factor in zip(values[1:], factors[1:], strict=True):
        total += value * factor
    return np.asarray(total)
