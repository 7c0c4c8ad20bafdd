"""A model's values as an ordered mapping of NumPy arrays, in memory or over a mapped file."""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import UsageError
from fedcore.state.files import FileSink, header_of, read_header, sha256_tensors
from fedcore.state.layout import STORAGE, Layout, TensorSpec
from fedcore.state.mapped import LARGE_BYTES, mapped_zeros

NAME_OF = {dtype: name for name, dtype in STORAGE.items() if name != "BF16"}
"""The safetensors dtype of each NumPy dtype that has one."""
_PIECE: Final = 1 << 20
"""Elements: 4 MiB of float32."""


class ModelState(Mapping[str, NDArray[Any]]):
    """Ordered, read-only mapping from tensor names to arrays in storage dtype (BF16 as uint16).

    The arrays are views: of memory that the caller gave, or of a memory map that the state keeps
    open. metadata: what a mapped file says in addition to its tensors. Raises UsageError when the arrays do not match
    the layout.
    """

    __slots__ = ("_arrays", "_map", "_specs", "layout", "metadata", "path")

    def __init__(self, layout: Layout, arrays: Mapping[str, NDArray[Any]], *, path: Path | None = None) -> None:
        self.layout = layout
        self.path = path
        self.metadata: Mapping[str, str] = {}
        self._map: mmap.mmap | None = None
        self._specs = {spec.name: spec for spec in layout.specs}
        self._arrays: dict[str, NDArray[Any]] = {}
        for spec in layout.specs:
            array = arrays[spec.name]
            matches = array.dtype == spec.storage and array.shape == spec.shape
            if not matches or not array.flags.c_contiguous:
                raise UsageError(f"tensor {spec.name!r} does not match its layout")
            view = array.view()
            view.flags.writeable = False
            self._arrays[spec.name] = view

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], *, dtypes: Mapping[str, str] | None = None) -> ModelState:
        """A state over the given arrays, in their order; contiguous arrays are not copied.

        `dtypes` names the safetensors dtype if NumPy has none: `{"weight": "BF16"}` for an
        array of uint16 that holds the bits of bfloat16. Raises EncodingError for a dtype that is
        not supported.
        """
        specs = []
        tensors = {}
        for name, value in arrays.items():
            array = np.asarray(value, dtype=value.dtype.newbyteorder("<"), order="C")
            dtype = (dtypes or {}).get(name) or NAME_OF.get(array.dtype, str(value.dtype))
            specs.append(TensorSpec(name=name, dtype=dtype, shape=array.shape))
            tensors[name] = array
        return cls(Layout(specs=tuple(specs)), tensors)

    @classmethod
    def open(cls, path: Path) -> ModelState:
        """Map a safetensors file; no tensor is read before it is used.

        The file must not change while the state is in use: write a new one and rename it, as
        `save` does. Raises PeerError for a file that is truncated or malformed, EncodingError for
        a dtype that is not supported, OSError for a file that cannot be opened.
        """
        layout, offsets, metadata = read_header(path)
        with path.open("rb") as file:
            raw = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        arrays: dict[str, NDArray[Any]] = {
            spec.name: np.ndarray(spec.shape, spec.storage, buffer=raw, offset=offsets[spec.name])
            for spec in layout.specs
        }
        state = cls(layout, arrays, path=path)
        state._map, state.metadata = raw, metadata
        return state

    def release(self) -> None:
        """Give back the memory of what was read so far; a mapped file is read again if it is needed again.

        Who goes through a large model once calls this now and then, and never holds the whole of it.
        """
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)

    def save(self, path: Path) -> None:
        """Write the whole state or nothing, durable on return; same state, same bytes.

        Raises StorageFull when the disk is full; a file that was at `path` is then unchanged.
        """
        with FileSink(path, self.layout) as sink:
            self.write_to(sink)

    def sha256(self) -> str:
        """SHA-256 of the file that `save` would write, in lower-case hexadecimal."""
        return sha256_tensors(self.layout, self)

    def is_canonical(self) -> bool:
        """Whether the mapped file holds the tensors and nothing else, byte for byte as `save` writes them.

        Then its SHA-256 names the tensors: no other file has the same ones in the same order.
        """
        header = header_of(self.layout)
        return self._map is not None and not self.metadata and self._map[: len(header)] == header

    def only(self, names: Collection[str]) -> ModelState:
        """The named tensors, in their order here; views of this state."""
        return ModelState(Layout(specs=tuple(spec for spec in self.layout.specs if spec.name in names)), self)

    def renamed(self, names: Mapping[str, str]) -> ModelState:
        """The tensors that `names` names (new name -> name here), in its order; views of this state."""
        specs = tuple(replace(self._specs[old], name=new) for new, old in names.items())
        state = ModelState(Layout(specs=specs), {new: self[old] for new, old in names.items()})
        state._map = self._map
        return state

    def write_to(self, sink: StateSink) -> None:
        """Hand over every tensor, in pieces; of a mapped file one piece at a time is in memory."""
        for spec in self.layout.specs:
            flat = self[spec.name].reshape(-1)
            for start in range(0, spec.size, _PIECE):
                sink.write(spec, start, flat[start : start + _PIECE])
                self.release()

    def float32(
        self,
        name: str,
        start: int = 0,
        stop: int | None = None,
        *,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Elements [start, stop) of the flattened tensor as float32, in `out` if it is given.

        F64 is rounded (to infinity if it does not fit), F16 and BF16 are widened exactly,
        integers are rounded to nearest.
        """
        flat = self._arrays[name].reshape(-1)[start:stop]
        result = np.empty(flat.shape, np.float32) if out is None else out[: flat.size]
        if self._specs[name].dtype == "BF16":
            np.left_shift(flat, 16, out=result.view(np.uint32), dtype=np.uint32)
        else:
            with np.errstate(over="ignore"):
                np.copyto(result, flat, casting="unsafe")
        return result

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        # Values stay out of logs: a client's state is what the federation keeps private.
        return f"ModelState({len(self)} tensors, {self.layout.nbytes} bytes)"


class StateSink(Protocol):
    """Takes a state block by block: a FileSink or a MemorySink."""

    def write(self, spec: TensorSpec, start: int, block: NDArray[Any]) -> None:
        """Store `block` (flat, contiguous, storage dtype) as elements of `spec` from `start`."""


class MemorySink:
    """Collects a state in memory, block by block; a large one in memory that the system may move to the disk."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        if layout.nbytes < LARGE_BYTES:
            self._arrays = {spec.name: np.empty(spec.size, spec.storage) for spec in layout.specs}
        else:
            self._arrays = _within(mapped_zeros(sum(map(_words, layout.specs))), layout)

    def write(self, spec: TensorSpec, start: int, block: NDArray[Any]) -> None:
        """Store `block` (flat, storage dtype) as the elements of tensor `spec` from `start` on."""
        self._arrays[spec.name][start : start + block.size] = block

    def state(self) -> ModelState:
        """The collected state; every element must have been written."""
        shaped = {spec.name: self._arrays[spec.name].reshape(spec.shape) for spec in self._layout.specs}
        return ModelState(self._layout, shaped)


def _words(spec: TensorSpec) -> int:
    """Words of 8 bytes that a tensor takes."""
    return -(-spec.size * spec.storage.itemsize // 8)


def _within(memory: NDArray[np.uint64], layout: Layout) -> dict[str, NDArray[Any]]:
    """The tensors one after the other in `memory`, each flat and at the begin of a word."""
    arrays, start = dict[str, NDArray[Any]](), 0
    for spec in layout.specs:
        end = start + _words(spec)
        arrays[spec.name] = memory[start:end].view(spec.storage)[: spec.size]
        start = end
    return arrays
