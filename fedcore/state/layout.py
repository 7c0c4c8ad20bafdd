"""Layout of a model: dtypes and shapes in order, without values, and casts to storage."""

from __future__ import annotations

import hashlib
import itertools
import math
import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import EncodingError, UsageError

STORAGE: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
"""The safetensors dtypes that can be averaged, and the NumPy dtype that holds each."""

CONTROL: Final = "control/"
"""Prefix of the name of a control variate (SCAFFOLD), which a training sends with the tensor that it belongs to."""

_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_LARGEST_TENSOR = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Name, safetensors dtype ("F32", "BF16", "I64", ...) and shape of one tensor.

    Raises EncodingError for a dtype that cannot be averaged (8-bit floats, complex numbers) and
    for a malformed name or shape.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or self.name in ("", "__metadata__"):
            raise EncodingError(f"{self.name!r} cannot be the name of a tensor", check="tensor-name")
        if self.dtype not in STORAGE:
            raise EncodingError(
                f"tensor {self.name!r} has dtype {self.dtype!r}, which cannot be averaged; "
                f"convert it to one of {', '.join(STORAGE)}",
                check="tensor-dtype",
            )
        if not all(type(size) is int and size >= 0 for size in self.shape):
            raise EncodingError(f"tensor {self.name!r} has a malformed shape", check="tensor-shape")
        if self.nbytes >= _LARGEST_TENSOR:
            raise EncodingError(f"tensor {self.name!r} is larger than any machine's memory")

    @property
    def storage(self) -> np.dtype[Any]:
        """NumPy dtype of the stored values; BF16 is held as its 16 bits in uint16."""
        return STORAGE[self.dtype]

    @property
    def size(self) -> int:
        """Number of elements; 1 for a 0-dimensional tensor."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored values."""
        return self.size * self.storage.itemsize

    @property
    def is_float(self) -> bool:
        """Whether it is averaged as real numbers; all others are averaged as exact integers."""
        return self.dtype in _FLOATS


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The ordered tensors of a model. Raises EncodingError for a name that occurs twice."""

    specs: tuple[TensorSpec, ...]

    def __post_init__(self) -> None:
        names = set()
        for spec in self.specs:
            if spec.name in names:
                raise EncodingError(f"tensor {spec.name!r} occurs twice in one model", check="tensor-twice")
            names.add(spec.name)

    @property
    def floats(self) -> tuple[TensorSpec, ...]:
        """The floating point tensors, in order."""
        return tuple(spec for spec in self.specs if spec.is_float)

    @property
    def integers(self) -> tuple[TensorSpec, ...]:
        """The integer and boolean tensors, in order."""
        return tuple(spec for spec in self.specs if not spec.is_float)

    def without_controls(self) -> Layout:
        """The tensors of the model alone, which an evaluation sends."""
        return Layout(specs=tuple(spec for spec in self.specs if not spec.name.startswith(CONTROL)))

    @property
    def nbytes(self) -> int:
        """Bytes of the values of one state, without the header of its file."""
        return sum(spec.nbytes for spec in self.specs)

    def digest(self) -> bytes:
        """SHA-256 over every name, dtype and shape in order; each field is length-prefixed."""
        hasher = hashlib.sha256(b"fedcore/layout/v1")
        hasher.update(struct.pack("<Q", len(self.specs)))
        for spec in self.specs:
            for text in (spec.name.encode(), spec.dtype.encode()):
                hasher.update(struct.pack("<Q", len(text)) + text)
            hasher.update(struct.pack(f"<{1 + len(spec.shape)}Q", len(spec.shape), *spec.shape))
        return hasher.digest()

    def check_same(self, other: Layout, *, what: str) -> None:
        """Raise EncodingError that names the first tensor in which `other` differs from this."""
        for ours, theirs in itertools.zip_longest(self.specs, other.specs):
            if ours == theirs:
                continue
            if ours is None or theirs is None or ours.name != theirs.name:
                expected = f"tensor {ours.name!r}" if ours else "no further tensor"
                actual = f"tensor {theirs.name!r}" if theirs else "no further tensor"
                raise EncodingError(
                    f"{what}: expected {expected}, found {actual}; keep the names and the order of the model's tensors",
                    check="tensor-names",
                )
            raise EncodingError(
                f"{what}: tensor {ours.name!r} is {theirs.dtype}{list(theirs.shape)}, expected "
                f"{ours.dtype}{list(ours.shape)}; keep the dtypes and shapes of the model's tensors",
                check="tensor-form",
            )


def from_float(spec: TensorSpec, values: NDArray[Any]) -> NDArray[Any]:
    """Cast float32 or float64 values to the storage dtype of `spec`, to nearest, ties to even.

    BF16 comes back as uint16 bits (float64 is rounded to float32 on the way). Raises EncodingError
    that names the tensor when a finite value would become infinite.
    """
    if not spec.is_float:
        raise UsageError(f"tensor {spec.name!r} does not hold floating point numbers")
    try:
        # The processor notes an overflow as it casts; looking at the results would be another pass.
        with np.errstate(over="raise"):
            if spec.dtype != "BF16":
                return values.astype(spec.storage, copy=False)
            stored = bfloat16_bits(values.astype(np.float32, copy=False))
    except FloatingPointError:
        raise _too_large(spec) from None
    infinite = (stored & 0x7FFF) == 0x7F80
    if infinite.any() and np.isfinite(values[infinite]).any():
        raise _too_large(spec)
    return stored


def _too_large(spec: TensorSpec) -> EncodingError:
    return EncodingError(
        f"tensor {spec.name!r} holds values that are too large for its dtype {spec.dtype}; "
        "keep it as F32, or lower the learning rate or the clipping norm",
        check="dtype-overflow",
    )


def bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round float32 to bfloat16, nearest with ties to even; NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))
    nan = np.isnan(values)
    if nan.any():
        # The carry would turn some NaN payloads into infinity or zero: keep them, made quiet.
        rounded = np.where(nan, bits | np.uint32(0x00400000), rounded)
    return (rounded >> 16).astype(np.uint16)
