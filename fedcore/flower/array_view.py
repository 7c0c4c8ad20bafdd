"""Flower's Array over values that are in memory, or in a mapped file, already."""

from __future__ import annotations

import functools
import io
from typing import Any

import numpy as np
from flwr.app import Array
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
